"""Makes the metrics of one registry, and those that every process has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge

from shared.platform.collectors import FastCounter, FastCounters, FastHistogram

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 1.5, 2, 2.5, 5, 10, 30, 60, 300, 1800)


class Families:
    """Each method registers a metric and returns it.

    Label values that are known beforehand are set to 0 at start, because Prometheus' `increase`
    misses the first increment of a series that did not exist before.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """A value."""
        return Gauge(name, text, labels, registry=self.registry)

    def counter(self, name: str, text: str, *labels: str, values: Iterable[str] = ()) -> Counter:
        """A counter; `values`: those of its only label that are known beforehand."""
        counter = Counter(name, text, labels, registry=self.registry)
        for value in values:
            counter.labels(value)
        return counter

    def fast_counter(self, name: str, text: str) -> FastCounter:
        """A counter for what happens with every step."""
        counter = FastCounter(name, text)
        self.registry.register(counter)
        return counter

    def fast_counters(self, name: str, text: str, *labels: str) -> FastCounters:
        """Counters for what happens with every request."""
        counters = FastCounters(name, text, labels)
        self.registry.register(counters)
        return counters

    def histogram(self, name: str, text: str, bounds: Sequence[float] = SECONDS) -> FastHistogram:
        """A histogram."""
        histogram = FastHistogram(name, text, bounds)
        self.registry.register(histogram)
        return histogram

    def build_info(self) -> None:
        """The version of this process."""
        build = self.gauge("flotilla_build_info", "Always 1; the label has the version", "version")
        build.labels(version("flotilla")).set(1)

    def silent_subscriptions(self) -> Counter:
        """Of gateways and workers."""
        return self.counter(
            "flotilla_silent_subscriptions_total",
            "Subscriptions given up and made anew because nothing arrived on them any more",
        )

    def malformed(self, *kinds: str) -> Counter:
        """Of gateways and workers."""
        return self.counter(
            "flotilla_malformed_values_total",
            "Values in Redis and messages that could not be read and were skipped, each time",
            "kind",
            values=kinds,
        )
