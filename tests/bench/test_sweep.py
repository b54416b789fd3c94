"""Series of benchmarks: their parameters, levels and results."""

import csv
import json
import sys
from pathlib import Path

import pytest

from octavo.bench.sweep import (
    read_params,
    run_benchmark,
    running,
    with_params,
    workload_levels,
    workload_of,
    write_summary,
)
from octavo.errors import ConfigError, RequestFailedError

WRITE = "import sys, json; json.dump({'x': 1}, open(sys.argv[-1], 'w'))"
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_sets_of_flags(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text('[{"max_num_seqs": 4, "model": "a/b"}, {}]')
    assert read_params(path) == {"max_num_seqs=4,model=a_b": {"max_num_seqs": 4, "model": "a/b"}, "1": {}}
    path.write_text('{"small": {"n": 1}}')
    assert read_params(path) == {"small": {"n": 1}}
    assert read_params(None) == {"default": {}}


@pytest.mark.parametrize("text", ["", "3", "[]", "[1]", '{"a": 1}', "[" * 100_000])
def test_other_files_are_rejected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=str(path)):
        read_params(path)


def test_flags_are_added_to_a_command() -> None:
    params = {
        "max_num_seqs": 4,
        "on": True,
        "off": False,
        "names": ["a", "b"],
        "none": None,
        "o": {"k": 1},
        "a_b.c_d": 2,
    }
    added = with_params(["serve"], params)
    assert added == [
        *("serve", "--max-num-seqs", "4", "--on", "--no-off", "--names", "a", "b"),
        *("--o", '{"k": 1}', "--a-b.c_d", "2"),
    ]


def test_levels_lie_evenly_between_the_ends() -> None:
    assert workload_levels(1.0, 5.0, 3, "request_rate") == [2.0, 3.0, 4.0]
    assert workload_levels(1.0, 9.0, 3, "max_concurrency") == [3.0, 5.0, 7.0]
    assert workload_levels(1.0, 2.2, 3, "max_concurrency") == []
    assert workload_levels(1.0, 5.0, 0, "request_rate") == []


def test_the_level_of_a_run() -> None:
    figures = {"request_throughput": 4.0, "mean_e2el_ms": 500.0}
    assert workload_of(figures, "request_rate") == 4.0
    assert workload_of(figures, "max_concurrency") == 2.0


def test_a_server_lives_as_long_as_its_block(tmp_path: Path) -> None:
    with running(SLEEP, tmp_path / "log") as server:
        figures = run_benchmark([sys.executable, "-c", WRITE], tmp_path / "a" / "r.json", server, tmp_path / "log")
        assert figures == {"x": 1}
        assert server.poll() is None
    assert server.poll() is not None


def test_a_server_that_ends_ends_the_benchmark(tmp_path: Path) -> None:
    with (
        running([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log") as server,
        pytest.raises(RequestFailedError, match="ended with status 3"),
    ):
        run_benchmark(SLEEP, tmp_path / "r.json", server, tmp_path / "log")


@pytest.mark.parametrize(("code", "sentence"), [("raise SystemExit(2)", "status 2"), ("pass", "cannot be read")])
def test_a_benchmark_that_fails(tmp_path: Path, code: str, sentence: str) -> None:
    with running(SLEEP, tmp_path / "log") as server, pytest.raises(RequestFailedError, match=sentence):
        run_benchmark([sys.executable, "-c", code], tmp_path / "r.json", server, tmp_path / "log")


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Cannot run"), running(["/there/is/none"], tmp_path / "log"):
        pass


def test_the_summary_has_a_line_for_each_run(tmp_path: Path) -> None:
    write_summary(tmp_path / "s.csv", [{"a": 1, "list": [1]}, {"a": 2, "b": "x"}])
    rows = list(csv.DictReader((tmp_path / "s.csv").open()))
    assert rows == [{"a": "1", "b": ""}, {"a": "2", "b": "x"}]
    assert json.dumps(rows)
