"""``octavo bench sweep``: a server for each set of its flags, measured with each set of the benchmark's."""

import argparse
import json
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from octavo.bench.sweep import (
    Params,
    read_params,
    run_benchmark,
    running,
    with_params,
    workload_levels,
    workload_of,
    write_summary,
)
from octavo.cli.bench_report import check_counts
from octavo.cli.parser import Parser
from octavo.cli.values import parse_count
from octavo.errors import ConfigError

RunOne = Callable[[str, Params], list[dict[str, Any]]]
"""Runs the benchmark with additional flags, under a name; returns the figures of all runs."""

Measure = Callable[[RunOne], list[dict[str, Any]]]


def run_serve(arguments: Sequence[str]) -> int:
    """Measure a server under each set of flags; returns the exit status."""
    parser = _make_parser("octavo bench sweep serve", "Measure a server under each set of flags.")
    return _Sweep(parser.parse(arguments)).run(lambda run_one: run_one("run", {}))


def run_workload(arguments: Sequence[str]) -> int:
    """Measure a server at levels of load; returns the exit status."""
    parser = _make_parser(
        "octavo bench sweep serve_workload",
        "Measure a server at loads that are spread evenly between one request at a time and all at once.",
    )
    parser.add_argument(
        "--workload-var",
        "--sla-variable",
        choices=("request_rate", "max_concurrency"),
        default="request_rate",
        help="what to vary. Default: request_rate.",
    )
    parser.add_argument(
        "--workload-iters",
        "--sla-iters",
        type=parse_count,
        default=10,
        help="levels of load, the two ends included. Default: 10.",
    )
    given = parser.parse(arguments)
    variable = given.workload_var
    if given.workload_iters < 2:
        raise ConfigError("--workload-iters must be at least 2: the two ends of the range.")
    sweep = _Sweep(given)
    if any(name.replace("-", "_") == variable for params in sweep.bench_params.values() for name in params):
        raise ConfigError(f"{variable} is what the sweep varies; leave it out of --bench-params.")

    def measure(run_one: RunOne) -> list[dict[str, Any]]:
        # One request at a time, whatever the rate; then all at once, as many as there are.
        serial = run_one("serial", {"max_concurrency": 1, "request_rate": "inf"})
        batch = run_one("batch", {"request_rate": "inf"})
        low, high = (sum(workload_of(row, variable) for row in rows) / len(rows) for rows in (serial, batch))
        rows = [{**row, "level": low} for row in serial]
        for level in workload_levels(low, high, given.workload_iters - 2, variable):
            value = int(level) if variable == "max_concurrency" else level
            rows += [{**row, "level": level} for row in run_one(f"{variable}={level:.4g}", {variable: value})]
        return rows + [{**row, "level": high} for row in batch]

    return sweep.run(measure)


def _make_parser(program: str, description: str) -> Parser:
    """The parser of a sweep over servers."""
    parser = Parser(program, description)
    add = parser.add_argument
    add("--serve-cmd", required=True, metavar="COMMAND", help="starts the server: 'octavo serve MODEL --port 8001'")
    add("--bench-cmd", required=True, metavar="COMMAND", help="measures it: 'octavo bench serve --port 8001'")
    add("--serve-params", type=Path, metavar="FILE", help="JSON list of objects: flags of the server, a start for each")
    add("--bench-params", type=Path, metavar="FILE", help="the same for the benchmark, for each of the server's")
    add("-o", "--output-dir", type=Path, default=Path("results"), metavar="FOLDER", help="Default: results.")
    add("-e", "--experiment-name", metavar="NAME", help="folder in there; default is the time")
    add("--num-runs", type=parse_count, default=3, help="runs of each benchmark. Default: 3.")
    add("--server-ready-timeout", type=parse_count, default=300, help="seconds to wait for a server. Default: 300.")
    add("--dry-run", action="store_true", help="print the commands only")
    add("--resume", action="store_true", help="keep results that are there; needs --experiment-name")
    return parser


@dataclass(frozen=True, slots=True)
class _Target:
    """A server that runs, and one set of the benchmark's flags.

    Attributes:
        known: what every row of the summary begins with.
    """

    server: subprocess.Popen[bytes]
    log: Path
    folder: Path
    known: Params
    flags: Params


class _Sweep:
    """One sweep: its flags, checked, and where its results go.

    Raises:
        ConfigError: a flag or a file of parameters is wrong.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        check_counts(given, "num_runs", "server_ready_timeout")
        if given.resume and given.experiment_name is None:
            raise ConfigError("--resume needs --experiment-name, to find the results to keep.")
        self._given = given
        self._serve = _split("--serve-cmd", given.serve_cmd)
        ready = ["--ready-check-timeout-sec", str(given.server_ready_timeout), "--disable-tqdm"]
        self._bench = [*_split("--bench-cmd", given.bench_cmd), *ready]
        self._serve_params = read_params(given.serve_params)
        self.bench_params = read_params(given.bench_params)
        self._folder: Path = given.output_dir / (given.experiment_name or f"{datetime.now(UTC):%Y%m%d-%H%M%S}")

    def run(self, measure: Measure) -> int:
        """Start each server, measure it, write ``summary.csv``; returns the exit status.

        Args:
            measure: what to run for each set of the benchmark's flags.
        """
        rows: list[dict[str, Any]] = []
        for serve_name, params in self._serve_params.items():
            command = with_params(self._serve, params)
            folder = self._folder / f"SERVE-{serve_name}"
            print(shlex.join(command))
            if self._given.dry_run:
                for bench_params in self.bench_params.values():
                    print("  " + shlex.join(with_params(self._bench, bench_params)))
                continue
            log = folder / "server.log"
            with running(command, log) as server:
                for bench_name, flags in self.bench_params.items():
                    known = {"serve": serve_name, "bench": bench_name, **flags}
                    target = _Target(server, log, folder / f"BENCH-{bench_name}", known, flags)
                    rows += measure(partial(self._run_all, target))
        if not self._given.dry_run:
            write_summary(self._folder / "summary.csv", rows)
            print(f"{len(rows)} runs, in {self._folder / 'summary.csv'}")
        return 0

    def _run_all(self, target: _Target, name: str, more: Params) -> list[dict[str, Any]]:
        command = with_params(self._bench, {**target.flags, **more})
        rows = []
        for number in range(self._given.num_runs):
            result = target.folder / name / f"run={number}.json"
            if self._given.resume and result.is_file():
                figures = json.loads(result.read_text(encoding="utf-8"))
            else:
                figures = run_benchmark(command, result, target.server, target.log)
            rows.append({**target.known, **more, "run_number": number, **figures})
        return rows


def _split(flag: str, command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"{flag} cannot be read: {error}.") from None
    if not words:
        raise ConfigError(f"{flag} is empty.")
    return words
