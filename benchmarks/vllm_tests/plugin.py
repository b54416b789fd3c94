"""The pytest plugin: puts Octavo where the tests expect vLLM, and writes one line per test.

Each line of the results file is a record of :mod:`.outcomes`.
"""

import json
import os
import sys
from collections.abc import Generator
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.vllm_tests import helpers, rules, server, standins
from benchmarks.vllm_tests.offline import vllm_runner
from benchmarks.vllm_tests.outcomes import INTERNAL, RESULTS, outcome

__all__ = ["vllm_runner"]

_MADE_OF_MISSING = "is not a type object (Missing)"
"""What Python says of ``object.__new__`` on a stand-in, which no stand-in can tell by itself."""


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before any file of vLLM is imported: the stand-ins and the server."""
    sys.path.insert(0, str(early_config.invocation_params.dir))
    standins.install()
    server.install(import_module("tests.utils"))
    helpers.serve_tokenizers()


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """From here on, whoever uses a name that is not mirrored is deselected."""
    standins.Missing.is_strict = True
    return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect by rule."""
    reasons = {item: rules.reason_for_test(item.nodeid, _fixtures(item)) for item in items}
    dropped = [item for item in items if reasons[item]]
    config.hook.pytest_deselected(items=dropped)
    for item in dropped:
        _write(item.nodeid, "deselected", reasons[item] or "", 0.0)
    items[:] = [item for item in items if not reasons[item]]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be imported with stand-ins counts once."""
    if report.failed:
        _write(report.nodeid, "deselected", f"{INTERNAL}, or a missing package, on import: {_last_line(report)}", 0.0)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write a test's outcome: its call's, or that of the phase that kept it from being called."""
    if report.skipped:
        _write(report.nodeid, "deselected", _skip_reason(report), report.duration)
    elif report.failed and _MADE_OF_MISSING in (reason := _last_line(report)):
        _write(report.nodeid, "deselected", f"{INTERNAL}: {reason}", report.duration)
    elif report.failed or report.when == "call":
        _write(report.nodeid, report.outcome, _last_line(report) if report.failed else "", report.duration)


def _fixtures(item: pytest.Item) -> list[str]:
    return list(getattr(item, "fixturenames", ()))


def _skip_reason(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return f"vLLM expects it to fail: {report.wasxfail}"
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def _last_line(report: pytest.CollectReport | pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr).strip()
    return text[:600]


def _write(test: str, kind: str, reason: str, seconds: float) -> None:
    with Path(os.environ[RESULTS]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(outcome(test, kind, reason, seconds)) + "\n")
