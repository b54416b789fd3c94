"""A histogram that costs next to nothing to count into."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class FastHistogram(Collector):
    """Counts in a plain list, for values that come once a token; Prometheus' own takes a lock and a search for each.

    All values must be counted by one thread. Whoever reads meanwhile may miss the latest.

    Args:
        buckets: upper bounds, growing; what is above all of them is counted, too.
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
        """The name alone, so that a registry refuses a second metric of this name."""
        yield HistogramMetricFamily(self._name, self._documentation, labels=list(self._labels))

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """What was counted so far, as Prometheus wants it: each bucket with all those below."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=list(self._labels))
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip(self._bounds, self._counts, strict=True):
            total += count
            buckets.append((floatToGoString(bound), total))
        family.add_metric(list(self._labels.values()), buckets, self._sum)
        yield family
