"""Means and percentiles of measured times."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The ``percent``-th percentile, with linear interpolation between neighbours.

    Args:
        ordered: at least one value, ascending.
        percent: 0 to 100.
    """
    position = (len(ordered) - 1) * percent / 100
    lower = math.floor(position)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (ordered[upper] - ordered[lower]) * (position - lower)


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of measurements, in their unit; all zero if there are none."""

    mean: float = 0.0
    median: float = 0.0
    std: float = 0.0
    percentiles: dict[float, float] = field(default_factory=dict)


def summarise(values: Iterable[float], percents: Sequence[float]) -> Summary:
    """Mean, median, standard deviation (of the population) and the given percentiles."""
    ordered = sorted(values)
    if not ordered:
        return Summary(percentiles=dict.fromkeys(percents, 0.0))
    mean = math.fsum(ordered) / len(ordered)
    variance = math.fsum((value - mean) ** 2 for value in ordered) / len(ordered)
    return Summary(
        mean=mean,
        median=percentile(ordered, 50),
        std=math.sqrt(variance),
        percentiles={percent: percentile(ordered, percent) for percent in percents},
    )


def percent_name(percent: float) -> str:
    """A percentile's name in reports: ``p99``, ``p99.9``."""
    return f"p{percent:g}"
