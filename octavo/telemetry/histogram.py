"""A Prometheus histogram that is cheap enough to be updated once per token."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class FastHistogram(Collector):
    """Counts in a plain list; Prometheus' own class takes a lock and a linear search per value.

    All values must be observed by one thread; concurrent readers may miss the latest.

    Args:
        buckets: upper bounds, ascending; an infinite one is added.
    """

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Mapping[str, str],
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name, self._documentation, self._labels = name, documentation, dict(labels)
        self._bounds = [*map(float, buckets), float("inf")]
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """The name only, so that a registry rejects a second metric of this name."""
        yield HistogramMetricFamily(self._name, self._documentation, labels=list(self._labels))

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """The current histogram with cumulative buckets, as Prometheus expects it."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=list(self._labels))
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip(self._bounds, self._counts, strict=True):
            total += count
            buckets.append((floatToGoString(bound), total))
        family.add_metric(list(self._labels.values()), buckets, self._sum)
        yield family
