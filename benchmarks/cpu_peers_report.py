"""What ``cpu_peers.py`` shows: medians, ratios, tables and a plot of the turns it ran."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.bench.tables import Table, number


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of a table: what it is called, and whether more of it is better."""

    title: str
    is_rate: bool = True


FIGURES = {
    "decode_1": Figure("decode, batch 1 (tok/s)"),
    "decode_16": Figure("decode, batch 16 (tok/s)"),
    "prefill_512": Figure("prefill of 512 (tok/s)"),
    "mixed_16": Figure("16 × (128 in, 128 out) (out tok/s)"),
    "memory_mb": Figure("memory above the library, cache apart (MB)", is_rate=False),
    "startup_s": Figure("start-up to the first token (s)", is_rate=False),
}
# Octavo's own formats against the format of llama.cpp with as many bits.
_COUNTERPARTS = {"int8": "q8_0", "int4": "q4_0"}

Medians = dict[str, dict[str, float]]
"""Figures by contestant, then by name."""


def medians(turns: Iterable[Mapping[str, Any]]) -> Medians:
    """The median over rounds of each contestant's figures; where it tried several settings, of the best for each."""
    samples: dict[str, dict[str, list[Mapping[str, float]]]] = {}
    for turn in turns:
        settings = samples.setdefault(turn["contestant"], {})
        settings.setdefault(turn["setting"], []).append(turn["figures"])
    return {
        contestant: {
            name: (max if figure.is_rate else min)(
                statistics.median(each[name] for each in rounds) for rounds in settings.values()
            )
            for name, figure in FIGURES.items()
        }
        for contestant, settings in samples.items()
    }


def ratios(found: Medians) -> Medians:
    """Octavo's figures relative to a peer's on the same weights, above 1 where Octavo is better."""
    return {
        f"{ours} / {theirs}": {name: _ratio(name, found[ours], found[theirs]) for name in FIGURES}
        for ours in found
        for theirs in found
        if _are_comparable(ours, theirs)
    }


def _are_comparable(ours: str, theirs: str) -> bool:
    (our_engine, our_weights), (their_engine, their_weights) = ours.split(), theirs.split()
    is_pair = our_engine == "octavo" != their_engine
    return is_pair and _COUNTERPARTS.get(our_weights, our_weights) == their_weights


def _ratio(name: str, ours: Mapping[str, float], theirs: Mapping[str, float]) -> float:
    return ours[name] / theirs[name] if FIGURES[name].is_rate else theirs[name] / ours[name]


def tables(model: str, result: Mapping[str, Any]) -> str:
    """A model's tables as text, with the reasons why contestants are not in them."""
    parts = (
        [f"{model}: medians", _table(result["medians"])] if result["medians"] else [f"{model}: nothing was measured"]
    )
    if result["ratios"]:
        parts += [f"{model}: ratios, above 1 where Octavo is better", _table(result["ratios"])]
    parts += [f"Left out: {contestant}. {reason}" for contestant, reason in result["left_out"].items()]
    return "\n\n".join(parts)


def _table(columns: Medians) -> str:
    rows = [[figure.title, *(number(values[name]) for values in columns.values())] for name, figure in FIGURES.items()]
    return Table(["", *columns], rows).text()


def plot(models: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw medians as bars, a row of panels for each model that has any. Needs Matplotlib (extra ``bench``)."""
    models = {model: result for model, result in models.items() if result["medians"]}
    if not models:
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, rows = pyplot.subplots(
        len(models), len(FIGURES), figsize=(3.2 * len(FIGURES), 3.4 * len(models)), squeeze=False, layout="constrained"
    )
    colours = {"octavo": "#0072b2", "llama.cpp": "#e69f00", "huggingface": "#9a9a9a"}
    for panels, (model, result) in zip(rows, models.items(), strict=True):
        contestants = list(result["medians"])
        for panel, (name, line) in zip(panels, FIGURES.items(), strict=True):
            bars = panel.barh(
                contestants,
                [result["medians"][contestant][name] for contestant in contestants],
                color=[colours[contestant.split()[0]] for contestant in contestants],
            )
            panel.bar_label(bars, fmt=number, padding=2, fontsize=7)
            panel.set_title(line.title, fontsize=8)
            panel.margins(x=0.2)
            panel.invert_yaxis()
            panel.tick_params(labelsize=7, labelleft=panel is panels[0])
        panels[0].set_ylabel(model)
    figure.savefig(path)
    pyplot.close(figure)
