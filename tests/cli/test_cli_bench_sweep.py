"""``octavo bench sweep``, with a server and a benchmark made up for the test."""

import csv
import json
import sys
from pathlib import Path

import pytest

from octavo.cli.main import main

SERVER = "import time; time.sleep(600)"
# Answers twice as fast where more requests are in flight; says what it was called with.
BENCHMARK = """
import json, sys
arguments = sys.argv[1:]

def value(flag, default=None):
    places = [place for place, argument in enumerate(arguments) if argument == flag]
    return arguments[places[-1] + 1] if places else default

serial = value("--max-concurrency") == "1"
rate, latency = (2.0, 500.0) if serial else (10.0, 1600.0)
figures = {"request_throughput": rate, "mean_e2el_ms": latency, "rate": value("--request-rate", "inf")}
json.dump(figures, open(value("--output-json"), "w"))
"""


@pytest.fixture
def commands(tmp_path: Path) -> list[str]:
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "benchmark.py").write_text(BENCHMARK)
    python = sys.executable
    serve, bench = f"{python} {tmp_path / 'server.py'}", f"{python} {tmp_path / 'benchmark.py'}"
    place = ["-o", str(tmp_path), "-e", "x", "--num-runs", "2"]
    return ["--serve-cmd", serve, "--bench-cmd", bench, *place]


def rows_of(path: Path) -> list[dict[str, str]]:
    with (path / "x" / "summary.csv").open() as file:
        return list(csv.DictReader(file))


def test_each_set_by_each_set(commands: list[str], tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('[{"max_num_seqs": 1}, {"max_num_seqs": 2}]')
    (tmp_path / "b.json").write_text('{"slow": {"request_rate": 1}, "fast": {"request_rate": 9}}')
    params = ["--serve-params", str(tmp_path / "s.json"), "--bench-params", str(tmp_path / "b.json")]
    assert main(["bench", "sweep", "serve", *commands, *params]) == 0
    rows = rows_of(tmp_path)
    assert len(rows) == 2 * 2 * 2
    assert {(row["serve"], row["bench"], row["rate"]) for row in rows} == {
        (f"max_num_seqs={n}", name, rate) for n in (1, 2) for name, rate in (("slow", "1"), ("fast", "9"))
    }


def test_results_that_are_there_are_kept(commands: list[str], tmp_path: Path) -> None:
    assert main(["bench", "sweep", "serve", *commands]) == 0
    (result,) = tmp_path.glob("x/SERVE-default/BENCH-default/run/run=1.json")
    result.write_text(json.dumps({"request_throughput": 77.0}))
    assert main(["bench", "sweep", "serve", *commands, "--resume"]) == 0
    assert [row["request_throughput"] for row in rows_of(tmp_path)] == ["10.0", "77.0"]


@pytest.mark.parametrize(
    ("flags", "levels"),
    [
        (["serve_workload", "--workload-iters", "5"], [2.0, 4.0, 6.0, 8.0, 10.0]),
        (["serve_sla", "--sla-iters", "3", "--sla-variable", "max_concurrency"], [1.0, 8.0, 16.0]),
        (["serve_workload", "--workload-iters", "2"], [2.0, 10.0]),
    ],
)
def test_loads_spread_over_the_range(
    commands: list[str], tmp_path: Path, flags: list[str], levels: list[float]
) -> None:
    assert main(["bench", "sweep", *flags, *commands]) == 0
    expected = [level for level in levels for _ in range(2)]
    assert [float(row["level"]) for row in rows_of(tmp_path)] == pytest.approx(expected, abs=0.6)


def test_a_dry_run_prints_the_commands(commands: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "sweep", "serve", *commands, "--dry-run"]) == 0
    assert "benchmark.py --ready-check-timeout-sec 300" in capsys.readouterr().out
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "flags",
    [
        ["serve", "--num-runs", "0"],
        ["serve", "--bench-params", "/there/is/none"],
        ["serve", "--serve-cmd", ""],
        ["serve", "--bench-cmd", "'"],
        ["serve_workload", "--workload-iters", "1"],
        ["serve_workload", "--workload-var", "colour"],
        ["nothing"],
    ],
)
def test_wrong_flags_are_refused(flags: list[str], commands: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    name, *rest = flags
    assert main(["bench", "sweep", name, *commands, *rest]) == 2
    assert capsys.readouterr().err.startswith("octavo: error: ")


def test_resuming_needs_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "sweep", "serve", "--serve-cmd", "a", "--bench-cmd", "b", "--resume"]) == 2
    assert "--experiment-name" in capsys.readouterr().err


def test_what_is_varied_is_not_set(commands: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.json").write_text('[{"request-rate": 1}]')
    arguments = [*commands, "--bench-params", str(tmp_path / "b.json")]
    assert main(["bench", "sweep", "serve_workload", *arguments]) == 2
    assert "leave it out" in capsys.readouterr().err
