"""Runs vLLM's entry-point tests against Octavo: ``python -m benchmarks.vllm_tests --group openai``."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from benchmarks.vllm_tests import report, rules
from benchmarks.vllm_tests.plugin import RESULTS
from benchmarks.vllm_tests.source import SourceError, default_cache, fetch

_REPOSITORY = Path(__file__).resolve().parents[2]


def main() -> None:
    """Fetch, run folder by folder, report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vllm_tests", description=__doc__)
    parser.add_argument("--group", action="append", choices=list(rules.GROUPS), help="default: all; may be repeated")
    parser.add_argument("--only", default="", help="files whose path contains this")
    parser.add_argument("-k", default="", help="pytest's expression")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="where vLLM's sources are kept")
    parser.add_argument("--output", type=Path, default=Path("vllm-tests.json"), help="the report as JSON")
    parser.add_argument("--log-dir", type=Path, help="pytest's output, one file per folder")
    parser.add_argument("--test-timeout", type=float, default=180.0, help="seconds per test")
    parser.add_argument("--folder-timeout", type=float, default=3600.0, help="seconds per folder of tests")
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
    files = _files(root, options.group or list(rules.GROUPS), options.only)
    for folder, members in groupby(files, key=lambda file: file.parent):
        _run(folder, list(members), root, results, log_dir, options)
    groups = report.collect(map(json.loads, results.read_text(encoding="utf-8").splitlines()))
    report.save(groups, options.output)
    print(report.details(groups))
    print(f"\n{report.table(groups)}")


def _files(root: Path, groups: list[str], part: str) -> Iterator[Path]:
    for path in sorted((root / "tests" / "entrypoints").rglob("test_*.py"), key=lambda file: (file.parent, file)):
        name = path.relative_to(root).as_posix()
        if rules.group_of(name) in groups and part in name:
            yield path.relative_to(root)


def _run(
    folder: Path, files: list[Path], root: Path, results: Path, log_dir: Path, options: argparse.Namespace
) -> None:
    log = log_dir / ("-".join(folder.parts[2:]) + ".log")
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
    before = len(results.read_text(encoding="utf-8").splitlines())
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                command,
                cwd=root,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=options.folder_timeout,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            done = -1
    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()[before:]]
    outcomes = [line["outcome"] for line in lines]
    if done not in (0, 1, 2, 5) or (done in (1, 2) and not lines):
        crash = {"test": str(folder), "outcome": "failed", "reason": f"pytest ended with status {done}", "seconds": 0.0}
        with results.open("a", encoding="utf-8") as output_lines:
            output_lines.write(json.dumps(crash) + "\n")
    counts = ", ".join(f"{outcomes.count(kind)} {kind}" for kind in ("passed", "failed", "deselected"))
    print(f"{folder.relative_to('tests/entrypoints')}: {counts}", flush=True)


if __name__ == "__main__":
    main()
