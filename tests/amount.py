"""How much of long tests runs, as a pytest plug-in.

``OCTAVO_TESTS=quick`` (``make test``) keeps an even sample of tables that are marked ``sample(count)`` and runs an
eighth of the examples of property tests. ``full``, the default, runs all. Which entries a sample keeps depends on
the table alone, so that all workers and all runs agree.

``OCTAVO_TEST_SECONDS`` (``make test-changed``) bounds a run's time: tests that have not begun by then are skipped, and
the summary counts them.
"""

import os
import time
from collections import defaultdict
from typing import Any

import hypothesis
import pytest

QUICK_SHARE = 8
MIN_EXAMPLES = 5
TIME_IS_OVER = "the time of OCTAVO_TEST_SECONDS is over"


class TimeLimit:
    """Skips what a process would begin later; registered where a limit is set."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.end = time.monotonic() + seconds

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if time.monotonic() >= self.end:
            pytest.skip(TIME_IS_OVER)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        skipped = terminalreporter.stats.get("skipped", [])
        count = sum(TIME_IS_OVER in str(report.longrepr) for report in skipped)
        if count:
            terminalreporter.write_line(f"{count} tests did not begin within {self.seconds:g} s and were skipped")


def pytest_configure(config: pytest.Config) -> None:
    seconds = os.environ.get("OCTAVO_TEST_SECONDS")
    if seconds:
        config.pluginmanager.register(TimeLimit(float(seconds)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    amount = os.environ.get("OCTAVO_TESTS") or "full"
    if amount not in ("quick", "full"):
        raise pytest.UsageError(f"OCTAVO_TESTS is {amount!r}; it must be quick or full.")
    if amount == "quick":
        _reduce_examples(items)
        _sample_tables(config, items)


def _reduce_examples(items: list[pytest.Item]) -> None:
    """Give property tests and state machines fewer examples, each once however many items share it."""
    holders: dict[int, tuple[Any, str]] = {}
    for item in items:
        function = getattr(getattr(item, "obj", None), "__func__", getattr(item, "obj", None))
        # The attribute in which hypothesis keeps what @settings said.
        for holder, name in (
            (function, "_hypothesis_internal_use_settings"),
            (getattr(item, "cls", None), "settings"),
        ):
            if isinstance(getattr(holder, name, None), hypothesis.settings):
                holders[id(holder)] = holder, name
    for holder, name in holders.values():
        given = getattr(holder, name)
        num_examples = min(given.max_examples, max(MIN_EXAMPLES, given.max_examples // QUICK_SHARE))
        setattr(holder, name, hypothesis.settings(given, max_examples=num_examples))


def _sample_tables(config: pytest.Config, items: list[pytest.Item]) -> None:
    tables: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sample"):
            tables[item.nodeid.partition("[")[0]].append(item)
    dropped = set[pytest.Item]()
    for table in tables.values():
        marker = table[0].get_closest_marker("sample")
        assert marker is not None
        (count,) = marker.args
        step = (len(table) - 1) / max(1, count - 1)
        kept = {table[round(index * step)] for index in range(count)} if count < len(table) else set(table)
        dropped |= set(table) - kept
    if dropped:
        config.hook.pytest_deselected(items=[item for item in items if item in dropped])
        items[:] = [item for item in items if item not in dropped]
