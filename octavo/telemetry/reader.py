"""Metrics as objects with vLLM's names and classes, for ``LLM.get_metrics``."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric as Family

PREFIX, VLLM_PREFIX = "octavo:", "vllm:"


@dataclass(slots=True)
class Metric:
    """A metric with one set of labels; the same name may come with several."""

    name: str
    labels: dict[str, str]


@dataclass(slots=True)
class Counter(Metric):
    """A number that only grows."""

    value: int


@dataclass(slots=True)
class Vector(Metric):
    """Counters by position."""

    values: list[int]


@dataclass(slots=True)
class Gauge(Metric):
    """A number that goes up and down."""

    value: float


@dataclass(slots=True)
class Histogram(Metric):
    """Observations, counted by size.

    Attributes:
        buckets: upper bound, as text, → observations up to it; ``+Inf`` is among them.
    """

    count: int
    sum: float
    buckets: dict[str, int]


def read_metrics(registry: CollectorRegistry) -> list[Metric]:
    """Octavo's current metrics, with vLLM's prefix."""
    found: list[Metric] = []
    for family in registry.collect():
        if family.name.startswith(PREFIX):
            found.extend(_read(family, VLLM_PREFIX + family.name.removeprefix(PREFIX)))
    return found


def _read(family: Family, name: str) -> Iterator[Metric]:
    if family.type == "gauge":
        for sample in family.samples:
            yield Gauge(name, dict(sample.labels), sample.value)
    elif family.type == "counter":
        counters = [
            Counter(name, dict(sample.labels), int(sample.value))
            for sample in family.samples
            if sample.name.endswith("_total")
        ]
        yield from _vectors(name, counters) if counters and "position" in counters[0].labels else counters
    elif family.type == "histogram":
        yield from _histograms(family, name)


def _vectors(name: str, counters: list[Counter]) -> Iterator[Vector]:
    """One vector for all counters that differ in their position only."""
    counters.sort(key=lambda counter: int(counter.labels["position"]))
    found: dict[tuple[str, ...], Vector] = {}
    for counter in counters:
        del counter.labels["position"]
        found.setdefault(tuple(counter.labels.values()), Vector(name, counter.labels, [])).values.append(counter.value)
    yield from found.values()


def _histograms(family: Family, name: str) -> Iterator[Histogram]:
    by_labels: defaultdict[tuple[tuple[str, str], ...], Histogram] = defaultdict(
        lambda: Histogram(name, {}, 0, 0.0, {})
    )
    for sample in family.samples:
        labels = {key: value for key, value in sample.labels.items() if key != "le"}
        histogram = by_labels[tuple(sorted(labels.items()))]
        histogram.labels = labels
        if sample.name.endswith("_bucket"):
            histogram.buckets[sample.labels["le"]] = int(sample.value)
        elif sample.name.endswith("_count"):
            histogram.count = int(sample.value)
        elif sample.name.endswith("_sum"):
            histogram.sum = sample.value
    yield from by_labels.values()
