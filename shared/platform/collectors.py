"""Cheap Prometheus metrics for what happens with every token, step or request.

prometheus_client's own metrics take a lock for each observation and search the buckets linearly;
these do neither. They may be changed from the event loop's thread only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class FastHistogram(Collector):
    """A histogram without labels. `bounds` are the upper limits of its buckets, ascending."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name, self._help = name, text
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value `times` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def collect(self) -> Iterable[Metric]:
        """Called by prometheus_client at each scrape."""
        total, buckets = 0, []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
        yield HistogramMetricFamily(self._name, self._help, buckets=buckets, sum_value=self._sum)


class FastCounter(Collector):
    """A counter without labels."""

    def __init__(self, name: str, text: str) -> None:
        self._name, self._help = name, text
        self.count = 0

    def inc(self, n: int = 1) -> None:
        """Count `n` more."""
        self.count += n

    def collect(self) -> Iterable[Metric]:
        """Called by prometheus_client at each scrape."""
        yield CounterMetricFamily(self._name, self._help, value=self.count)


class FastCounters(Collector):
    """Counters of one name with labels."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._name, self._help, self._labels = name, text, labels
        self._by_values: dict[tuple[str, ...], FastCounter] = {}

    def of(self, *values: str) -> FastCounter:
        """The counter with these label values; it is exported from the first call on."""
        counter = self._by_values.get(values)
        if counter is None:
            counter = self._by_values[values] = FastCounter(self._name, self._help)
        return counter

    def collect(self) -> Iterable[Metric]:
        """Called by prometheus_client at each scrape."""
        family = CounterMetricFamily(self._name, self._help, labels=self._labels)
        for values, counter in list(self._by_values.items()):
            family.add_metric(values, counter.count)
        yield family
