import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.load import RequestRecord
from octavo.bench.serving import parse_objectives, summarise_records
from octavo.bench.statistics import percent_name, percentile, summarise
from octavo.errors import ConfigError

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


@given(NUMBERS, st.floats(0, 100))
def test_percentiles_agree_with_numpy(values: list[float], percent: float) -> None:
    assert math.isclose(percentile(sorted(values), percent), np.percentile(values, percent), rel_tol=1e-9, abs_tol=1e-6)


@given(NUMBERS)
def test_summaries_agree_with_numpy(values: list[float]) -> None:
    summary = summarise(values, [90, 99.9])
    for mine, theirs in (
        (summary.mean, np.mean(values)),
        (summary.median, np.median(values)),
        (summary.std, np.std(values)),
        (summary.percentiles[90], np.percentile(values, 90)),
        (summary.percentiles[99.9], np.percentile(values, 99.9)),
    ):
        assert math.isclose(mine, theirs, rel_tol=1e-9, abs_tol=1e-6)


def test_no_values_are_zero() -> None:
    assert summarise([], [99]).percentiles == {99: 0.0}


def test_names() -> None:
    assert (percent_name(99.0), percent_name(99.9)) == ("p99", "p99.9")


RECORDS = [
    RequestRecord(10, "done", ttft=0.1, latency=0.5, itl=[0.1, 0.3], output_tokens=5),
    RequestRecord(20, "done", ttft=0.3, latency=0.3, itl=[], output_tokens=1),
    RequestRecord(30, "aborted", ttft=9.0, latency=9.0, itl=[9.0], output_tokens=2),
    RequestRecord(40, "failed", error="status 500"),
]


def test_a_load_is_added_up() -> None:
    result = summarise_records(RECORDS, 2.0, percents=[50], objectives={"ttft": 200})
    figures = result.as_json()
    assert (figures["completed"], figures["aborted"], figures["failed"]) == (2, 1, 1)
    assert (figures["total_input_tokens"], figures["total_output_tokens"]) == (60, 8)
    assert figures["request_throughput"] == 1.0
    assert figures["request_goodput"] == 0.5
    assert figures["output_throughput"] == 4.0
    assert figures["mean_ttft_ms"] == pytest.approx(200)
    assert figures["mean_tpot_ms"] == pytest.approx(100), "a single token has no time per further token"
    assert figures["p50_itl_ms"] == pytest.approx(200)
    assert figures["mean_e2el_ms"] == pytest.approx(400)
    assert "status 500" in result.table()


def test_objectives() -> None:
    assert parse_objectives([("ttft", "200"), ("tpot", "50")]) == {"ttft": 200.0, "tpot": 50.0}
    for pair in (("itl", "1"), ("ttft", "x"), ("ttft", "0"), ("ttft", "nan")):
        with pytest.raises(ConfigError):
            parse_objectives([pair])
