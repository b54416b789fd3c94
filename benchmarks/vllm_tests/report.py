"""From the lines of the plugin to a table per group and one JSON file."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.vllm_tests import rules
from benchmarks.vllm_tests.outcomes import INTERNAL


@dataclass(slots=True)
class Group:
    """The outcomes of one group.

    Attributes:
        passed: ids of tests.
        failed: id → what went wrong.
        deselected: id → reason.
    """

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    deselected: dict[str, str] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """The share of selected tests that passed, in percent."""
        return 100 * len(self.passed) / max(1, len(self.passed) + len(self.failed))


def collect(lines: Iterable[Mapping[str, Any]]) -> dict[str, Group]:
    """Group → outcomes. A test that passed and then failed to clean up has failed."""
    groups: dict[str, Group] = {}
    last: dict[str, Mapping[str, Any]] = {}
    for line in lines:
        last[line["test"]] = line
    for test, line in last.items():
        group = groups.setdefault(rules.group_of(test) or "other", Group())
        if line["outcome"] == "passed":
            group.passed.append(test)
        elif line["outcome"] == "failed":
            group.failed[test] = line["reason"]
        else:
            group.deselected[test] = line["reason"]
    return groups


def table(groups: Mapping[str, Group]) -> str:
    """A Markdown table: per group passed, failed, deselected, and the pass rate among selected tests."""
    rows = ["| group | passed | failed | deselected | pass rate |", "|---|---:|---:|---:|---:|"]
    total = Group()
    for name, group in groups.items():
        rows.append(_row(name, group))
        total.passed += group.passed
        total.failed |= group.failed
        total.deselected |= group.deselected
    return "\n".join([*rows, _row("**all**", total)])


def details(groups: Mapping[str, Group]) -> str:
    """Each failure with its message, and how many tests each reason deselected."""
    lines = []
    for name, group in groups.items():
        lines += [f"\n{name}: failed"] + [
            f"  {test}\n      {_first(reason)}" + (f"\n      known: {known}" if (known := rules.known(test)) else "")
            for test, reason in sorted(group.failed.items())
        ]
        lines += [f"{name}: deselected"] + [
            f"  {count:4} {reason}" for reason, count in Counter(map(_kind, group.deselected.values())).most_common()
        ]
    return "\n".join(lines)


def save(groups: Mapping[str, Group], file: Path) -> None:
    """Write everything as JSON."""
    figures = {
        name: {
            "passed": sorted(group.passed),
            "failed": {
                test: {"message": reason, "known": rules.known(test)} for test, reason in sorted(group.failed.items())
            },
            "deselected": dict(sorted(group.deselected.items())),
            "pass_rate": round(group.rate, 1),
        }
        for name, group in groups.items()
    }
    file.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _row(name: str, group: Group) -> str:
    counts = (len(group.passed), len(group.failed), len(group.deselected))
    return "| " + " | ".join([name, *map(str, counts), f"{group.rate:.1f} %"]) + " |"


def _first(reason: str) -> str:
    return " / ".join(line.strip() for line in reason.splitlines() if line.strip())[:300]


def _kind(reason: str) -> str:
    """Tests that drive vLLM's own code count together, whichever of its names they use."""
    return INTERNAL if reason.startswith(INTERNAL) else reason
