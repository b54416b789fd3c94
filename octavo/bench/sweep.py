"""``octavo bench sweep``: a server for each set of server flags, and a benchmark run for each set of its own flags."""

import contextlib
import csv
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from octavo.errors import ConfigError, RequestFailedError

Params = dict[str, Any]
WorkloadVariable = Literal["request_rate", "max_concurrency"]

_POLL_SECONDS = 0.1
_SECONDS_TO_END = 30.0


def read_params(path: Path | None) -> dict[str, Params]:
    """Sets of flags by name, from a JSON list of objects or an object of objects; one empty set without a file."""
    if path is None:
        return {"default": {}}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"Cannot read the parameters in {path}: {error}.") from None
    if isinstance(content, list):
        content = {_name_of(params) or str(index): params for index, params in enumerate(content)}
    if not isinstance(content, dict) or not content or not all(isinstance(each, dict) for each in content.values()):
        raise ConfigError(f"{path} must hold a JSON list of objects, each with flags and their values.")
    return content


def _name_of(params: Any) -> str:
    if not isinstance(params, dict):
        return ""
    return ",".join(f"{key}={value}" for key, value in params.items()).replace("/", "_")[:100]


def with_params(command: Sequence[str], params: Mapping[str, Any]) -> list[str]:
    """A command with additional flags, which override its earlier ones."""
    result = list(command)
    for key, value in params.items():
        name, dot, field = key.partition(".")
        flag = name.replace("_", "-") + dot + field
        if value is None:
            continue
        if isinstance(value, bool):
            result.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list):
            result += [f"--{flag}", *map(str, value)]
        else:
            result += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return result


def workload_levels(low: float, high: float, count: int, variable: WorkloadVariable) -> list[float]:
    """``count`` evenly spaced levels between two, exclusive; distinct integers for concurrency."""
    step = (high - low) / (count + 1)
    levels = [low + step * (index + 1) for index in range(count)]
    if variable == "request_rate":
        return levels
    ends = (round(low), round(high))
    return [float(level) for level in sorted({round(level) for level in levels}) if level not in ends and level > 0]


def workload_of(figures: Mapping[str, Any], variable: WorkloadVariable) -> float:
    """The level that a run achieved: requests/s, or mean requests in flight (Little's law)."""
    rate = float(figures["request_throughput"])
    return rate if variable == "request_rate" else rate * float(figures["mean_e2el_ms"]) / 1e3


@contextlib.contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server while the block runs, in a process group of its own that is ended afterwards."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        try:
            server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as error:
            raise ConfigError(f"Cannot run {command[0]!r}: {error.strerror}.") from None
        try:
            yield server
        finally:
            _end(server)


def _end(server: subprocess.Popen[bytes]) -> None:
    for number, seconds in ((signal.SIGTERM, _SECONDS_TO_END), (signal.SIGKILL, _SECONDS_TO_END)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(seconds)
            return


def run_benchmark(command: Sequence[str], result: Path, server: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    """Run one benchmark against a server and return its figures.

    Args:
        result: the JSON file that the benchmark writes.
        log: the server's output, named in the error if it ends.

    Raises:
        RequestFailedError: the server ended, or the benchmark failed or wrote nothing.
    """
    result.parent.mkdir(parents=True, exist_ok=True)
    benchmark = subprocess.Popen([*command, "--output-json", str(result)], stdout=subprocess.DEVNULL)
    try:
        while benchmark.poll() is None:
            if server.poll() is not None:
                raise RequestFailedError(f"The server ended with status {server.returncode}; see {log}.")
            time.sleep(_POLL_SECONDS)
    finally:
        if benchmark.poll() is None:
            benchmark.kill()
        benchmark.wait()
    if benchmark.returncode != 0:
        raise RequestFailedError(f"The benchmark ended with status {benchmark.returncode}: {' '.join(command)}.")
    try:
        figures = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestFailedError(f"The benchmark's result cannot be read: {error}.") from None
    assert isinstance(figures, dict)
    return figures


def write_summary(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write figures that are numbers or strings as a table, one line per run."""
    plain = [{key: value for key, value in row.items() if not isinstance(value, dict | list)} for row in rows]
    names = list(dict.fromkeys(name for row in plain for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(plain)
