"""Runs vLLM's entry-point tests against Octavo: ``python -m benchmarks.vllm_tests --group openai``."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.vllm_tests import report, rules
from benchmarks.vllm_tests.outcomes import RESULTS, internal_tests, outcome
from benchmarks.vllm_tests.source import SourceError, default_cache, fetch

_REPOSITORY = Path(__file__).resolve().parents[2]


def main() -> None:
    """Fetch, run group by group, report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vllm_tests", description=__doc__)
    parser.add_argument("--group", action="append", choices=list(rules.GROUPS), help="default: all; may be repeated")
    parser.add_argument("--only", default="", help="files whose path contains this")
    parser.add_argument("-k", default="", help="pytest's expression")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="where vLLM's sources are kept")
    parser.add_argument("--output", type=Path, default=Path("vllm-tests.json"), help="the report as JSON")
    parser.add_argument("--log-dir", type=Path, help="pytest's output, one file per group")
    parser.add_argument("--test-timeout", type=float, default=180.0, help="seconds per test")
    parser.add_argument("--group-timeout", type=float, default=7200.0, help="seconds per group")
    options = parser.parse_args()
    try:
        root = fetch(options.cache)
    except SourceError as error:
        sys.exit(str(error))
    log_dir = options.log_dir or options.cache / "logs"
    log_dir.mkdir(parents=True, exist_ok=True)
    results = log_dir / "results.jsonl"
    results.unlink(missing_ok=True)
    results.touch()
    for group in options.group or list(rules.GROUPS):
        _run(group, list(_files(root, group, options.only)), root, results, log_dir, options)
    groups = report.collect(_read(results))
    report.save(groups, options.output)
    print(report.details(groups))
    print(f"\n{report.table(groups)}")


def _files(root: Path, group: str, part: str) -> Iterator[Path]:
    for path in sorted((root / "tests" / "entrypoints").rglob("test_*.py")):
        name = path.relative_to(root).as_posix()
        if rules.group_of(name) == group and part in name:
            yield path.relative_to(root)


def _run(group: str, files: list[Path], root: Path, results: Path, log_dir: Path, options: argparse.Namespace) -> None:
    lines = [line for file in files for line in internal_tests(root, file)]
    internal = {line["test"].partition("::")[0] for line in lines}
    _append(results, lines)
    files = [file for file in files if file.as_posix() not in internal]
    if not files:
        return
    command = [
        *(
            sys.executable,
            "-m",
            "pytest",
            *map(str, files),
            "--confcutdir",
            "tests/entrypoints",
            "--rootdir",
            str(root),
        ),
        *("-p", "benchmarks.vllm_tests.plugin", "-p", "no:cacheprovider", "--override-ini", "addopts="),
        *("-v", "-s", "--continue-on-collection-errors", "--timeout", str(options.test_timeout), "-k", options.k),
    ]
    environment = {
        **os.environ,
        **rules.ENVIRONMENT,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_REPOSITORY), os.environ.get("PYTHONPATH", "")])),
        RESULTS: str(results),
    }
    before = len(_read(results))
    with (log_dir / f"{group}.log").open("wb") as output:
        try:
            done = subprocess.run(
                command,
                cwd=root,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=options.group_timeout,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            done = -1
    if done not in (0, 1, 2, 5) or (done in (1, 2) and len(_read(results)) == before):
        _append(results, [outcome(f"tests/entrypoints/{group}", "failed", f"pytest ended with status {done}")])


def _read(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]


def _append(results: Path, lines: list[dict[str, Any]]) -> None:
    with results.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
