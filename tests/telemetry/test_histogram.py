"""The same text comes out as of Prometheus' own histogram."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import generate_latest

from octavo.telemetry.histogram import FastHistogram

BUCKETS = (0.01, 0.025, 1, 2.5, 40)
LABELS = {"model_name": 'a "b"\\c', "engine": "0"}


@given(st.lists(st.sampled_from([0.01, 0.025, 1.0, 40.0]) | st.floats(0, 1e6), max_size=50))
def test_it_counts_as_the_original_does(values: list[float]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    fast = FastHistogram("octavo:latency_seconds", "How long.", LABELS, BUCKETS, ours)
    slow = Histogram("octavo:latency_seconds", "How long.", tuple(LABELS), registry=theirs, buckets=BUCKETS).labels(
        *LABELS.values()
    )
    for value in values:
        fast.observe(value)
        slow.observe(value)
    expected = [line for line in generate_latest(theirs).decode().splitlines() if "_created" not in line]
    assert generate_latest(ours).decode().splitlines() == expected


def test_two_of_one_name_are_refused() -> None:
    registry = CollectorRegistry()
    FastHistogram("octavo:latency_seconds", "How long.", LABELS, BUCKETS, registry)
    with pytest.raises(ValueError, match="Duplicated"):
        FastHistogram("octavo:latency_seconds", "How long.", LABELS, BUCKETS, registry)
