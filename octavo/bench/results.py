"""Renders result files as tables, so that no number in a document is typed by hand.

A page has a placeholder for each file, which :func:`fill_page` fills:

    <!-- results: ../benchmarks/results/engine.json -->
    <!-- end of results -->

and for a picture of one or several profiles:

    <!-- picture: pictures/steps.svg of ../benchmarks/results/profile.json -->
    <!-- end of picture -->
"""

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.bench.picture import Bar, draw_bars
from octavo.bench.profile_summary import GROUP_NAMES
from octavo.bench.tables import Table, number, share
from octavo.errors import ConfigError

Result = Mapping[str, Any]
NOTHING_YET = "*Not measured yet.*"
_RESULTS = re.compile(r"(?P<begin><!-- results: (?P<file>\S+) -->\n).*?(?P<end><!-- end of results -->)", re.DOTALL)
_PICTURE = re.compile(
    r"(?P<begin><!-- picture: (?P<picture>\S+) of (?P<files>[^>]+?) -->\n).*?(?P<end><!-- end of picture -->)",
    re.DOTALL,
)


def read_result(path: Path) -> dict[str, Any]:
    """A file that a benchmark wrote."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror}.") from None
    except ValueError:
        raise ConfigError(f"{path} is not JSON.") from None
    if not isinstance(result, dict) or result.get("kind") not in _TABLES:
        raise ConfigError(f"{path} is no result of octavo bench engine, octavo bench kernels or octavo profile.")
    return result


def tables_of(result: Result) -> list[Table]:
    """The tables of a result."""
    return _TABLES[result["kind"]](result)


def caption(result: Result) -> str:
    """A line on what was measured, where, when and with which versions."""
    versions = result["versions"]
    named = ", ".join(
        f"{name} {versions[name]}" for name in ("octavo", "torch", "triton", "python") if name in versions
    )
    ceilings = result["ceilings"]
    device = ceilings["device"]
    if ceilings["read_bandwidth"]:
        device += f" ({_ceilings(ceilings)})"
    commit = f", commit {result['commit']}" if result["commit"] else ""
    return f"{result['model']} on {device}; {named}; {result['date'][:10]}{commit}. `{result['command']}`"


def render(result: Result, *, is_markdown: bool) -> str:
    """Caption and tables."""
    tables = [table.markdown() if is_markdown else table.text() for table in tables_of(result)]
    return "\n\n".join([caption(result), *tables])


@dataclass(frozen=True, slots=True)
class FilledPage:
    """A page's text, and the pictures that it shows by their paths."""

    text: str
    pictures: dict[Path, str]


def fill_page(page: Path) -> FilledPage:
    """Fill every placeholder of a page from its files; a placeholder without a file is marked as missing."""
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"Cannot read {page}: {error.strerror}.") from None
    pictures: dict[Path, str] = {}

    def fill_results(place: re.Match[str]) -> str:
        path = page.parent / place["file"]
        content = render(read_result(path), is_markdown=True) if path.is_file() else NOTHING_YET
        return f"{place['begin']}\n{content}\n\n{place['end']}"

    def fill_picture(place: re.Match[str]) -> str:
        results = [read_result(path) for name in place["files"].split() if (path := page.parent / name).is_file()]
        content = NOTHING_YET
        if results:
            pictures[page.parent / place["picture"]] = draw_bars([profile_bar(result) for result in results])
            content = f"![Where the time of a step goes]({place['picture']})"
        return f"{place['begin']}\n{content}\n\n{place['end']}"

    text = _PICTURE.sub(fill_picture, _RESULTS.sub(fill_results, text))
    return FilledPage(text, pictures)


def profile_bar(result: Result) -> Bar:
    """A profile's step as a bar, in milliseconds; parts have the same order in all profiles."""
    steps = result["num_steps"]
    seconds = {group["name"]: group["seconds"] for group in result["groups"]}
    parts = {name: seconds.get(name, 0.0) / steps * 1e3 for name in GROUP_NAMES}
    parts["gaps"] = max(0.0, (result["wall_seconds"] - result["busy_seconds"]) / steps * 1e3)
    return Bar(f"{result['model']}, {result['case']}, batch {result['batch']}", parts)


def _ceilings(ceilings: Result) -> str:
    read, rate, float8_rate = ceilings["read_bandwidth"], ceilings["matmul_rate"], ceilings.get("float8_rate")
    float8 = f", {_prefixed(float8_rate)}FLOP/s float8" if float8_rate else ""
    return f"{_prefixed(read)}B/s read, {_prefixed(rate)}FLOP/s {ceilings['dtype']}{float8}"


def _prefixed(value: float) -> str:
    return f"{value / 1e12:.3g} T" if value >= 1e12 else f"{value / 1e9:.3g} G"


def _engine_tables(result: Result) -> list[Table]:
    engines = result["engines"]
    ours, others = engines[0], engines[1:]
    headers = ["", ours["module"]]
    for other in others:
        headers += [f"{other['module']} {other['version']}", "ratio"]
    rows = []
    for figure in result["figures"]:
        name, limit, is_time = figure["name"], figure["limit"], figure["is_time"]
        value = ours["figures"][name]
        row = [figure["title"], number(value)]
        for other in others:
            theirs = other["figures"][name]
            row += [number(theirs), number(theirs / value if is_time else value / theirs)]
        row += [number(limit), (share(limit, value) if is_time else share(value, limit)) if limit else ""]
        rows.append(row)
    return [Table([*headers, "limit", "of limit"], rows), _phase_table(engines)]


def _phase_table(engines: Sequence[Result]) -> Table:
    names = list(engines[0]["phases"])
    rows = [[name, *(number(engine["phases"][name]) for engine in engines)] for name in names]
    return Table(["start-up phase (s)", *(engine["module"] for engine in engines)], rows)


def _kernel_tables(result: Result) -> list[Table]:
    tables = []
    for part in result["parts"]:
        rows = [_kernel_row(kernel) for kernel in part["kernels"]]
        known = [kernel for kernel in part["kernels"] if kernel["seconds"] is not None]
        total = sum(kernel["seconds"] * kernel["times"] for kernel in known)
        least = sum(kernel["limit"] * kernel["times"] for kernel in known)
        rows.append(
            ["together, in one step", "", number(total * 1e6), number(least * 1e6), share(least, total), "", ""]
        )
        headers = [part["title"], "per step", "µs", "limit", "of limit", "library", "ratio"]
        tables.append(Table(headers, rows))
    return tables


def _kernel_row(kernel: Result) -> list[str]:
    seconds, limit, library = kernel["seconds"], kernel["limit"], kernel["library_seconds"]
    if seconds is None:
        return [f"{kernel['name']}: {kernel['error']}", "", "", "", "", "", ""]
    row = [kernel["name"], f"{kernel['times']} ×", number(seconds * 1e6), number(limit * 1e6), share(limit, seconds)]
    if library is None:
        return [*row, "", ""]
    return [*row, f"{number(library * 1e6)} ({kernel['library']})", number(library / seconds)]


def _group_tables(result: Result) -> list[Table]:
    tables = []
    for part in result["parts"]:
        headers = [f"head size {part['head_dim']}, group size"]
        columns = []
        for load in part["loads"]:
            is_decode = load["phase"] == "decode"
            headers += [f"{load['title']}: {'GB/s' if is_decode else 'TFLOP/s'}", "of limit", "of best"]
            columns.append(
                _group_cells(load["sizes"], *(("num_bytes", 1e9) if is_decode else ("num_operations", 1e12)))
            )
        names = [str(size["group_size"]) for size in part["loads"][0]["sizes"]]
        rows = [[name, *itertools.chain(*cells)] for name, *cells in zip(names, *columns, strict=True)]
        tables.append(Table(headers, rows))
    return tables


def _group_cells(sizes: Sequence[Result], amount: str, unit: float) -> list[list[str]]:
    """Of each group size, the rate, its share of the device's limit, and of the best size's rate."""
    rates = [None if size["seconds"] is None else size[amount] / size["seconds"] / unit for size in sizes]
    best = max((rate for rate in rates if rate is not None), default=None)
    return [
        ["failed", "", ""] if rate is None else [number(rate), share(size["limit"], size["seconds"]), share(rate, best)]
        for rate, size in zip(rates, sizes, strict=True)
    ]


def _profile_tables(result: Result) -> list[Table]:
    wall, steps = result["wall_seconds"], result["num_steps"]
    groups = [
        [group["name"], number(group["seconds"] / steps * 1e6), share(group["seconds"], wall)]
        for group in result["groups"]
    ]
    gap = wall - result["busy_seconds"]
    groups += [
        ["gaps", number(gap / steps * 1e6), share(gap, wall)],
        ["step", number(wall / steps * 1e6), ""],
        ["step without the profiler", number(result["plain_seconds"] / steps * 1e6), ""],
    ]
    kernels = [
        [
            f"{kernel['name']}",
            number(kernel["count"] / steps),
            number(kernel["total_seconds"] / steps * 1e6),
            number(kernel["total_seconds"] / kernel["count"] * 1e6),
            share(kernel["own_seconds"], wall),
        ]
        for kernel in result["kernels"]
    ]
    return [
        Table([f"{result['case']}, batch {result['batch']}", "µs per step", "share"], groups),
        Table(["kernel", "per step", "µs per step", "µs each", "share"], kernels),
    ]


_TABLES: dict[str, Callable[[Result], list[Table]]] = {
    "engine": _engine_tables,
    "kernels": _kernel_tables,
    "group_sizes": _group_tables,
    "profile": _profile_tables,
}
