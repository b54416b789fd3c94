"""How much of long tests runs, as a pytest plug-in.

``OCTAVO_TESTS=quick`` (``make test``) keeps an even sample of tables that are marked ``sample(count)`` and runs an
eighth of the examples of property tests. ``full``, the default, runs all. Which entries a sample keeps depends on
the table alone, so that all workers and all runs agree.
"""

import os
from collections import defaultdict
from typing import Any

import hypothesis
import pytest

QUICK_SHARE = 8
MIN_EXAMPLES = 5


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
