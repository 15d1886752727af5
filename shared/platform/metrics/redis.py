"""Metrics of the Redis servers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.store.health import evicts


class RedisReading(Collector):
    """Metrics from the servers' INFO, read at each scrape. What a server hides is left out."""

    def __init__(self) -> None:
        self.infos: Sequence[Mapping[str, Any]] = ()
        """INFO of each server that holds shards, in order; empty while it can't be read."""

    def collect(self) -> Iterable[Metric]:
        """Called by prometheus_client at each scrape."""
        for family, name, text, read in _REDIS:
            metric = family(name, text, labels=["server"])
            for index, info in enumerate(self.infos):
                with contextlib.suppress(KeyError):  # a managed Redis may hide this field
                    metric.add_metric([str(index)], read(info))
            if metric.samples:
                yield metric


_REDIS: Sequence[
    tuple[
        type[GaugeMetricFamily] | type[CounterMetricFamily],
        str,
        str,
        Callable[[Mapping[str, Any]], float],
    ]
] = (
    (
        GaugeMetricFamily,
        "flotilla_redis_memory_used_bytes",
        "Memory in use",
        lambda info: info["used_memory"],
    ),
    (
        GaugeMetricFamily,
        "flotilla_redis_memory_limit_bytes",
        "maxmemory; 0 means no limit",
        lambda info: info["maxmemory"],
    ),
    (
        GaugeMetricFamily,
        "flotilla_redis_aof_enabled",
        "1 if AOF persistence is enabled",
        lambda info: info["aof_enabled"],
    ),
    (
        GaugeMetricFamily,
        "flotilla_redis_aof_ok",
        "1 if the last AOF write and the last AOF rewrite succeeded",
        lambda info: info["aof_last_write_status"] == info["aof_last_bgrewrite_status"] == "ok",
    ),
    (
        CounterMetricFamily,
        "flotilla_redis_commands_total",
        "Commands executed, including those called by scripts",
        lambda info: info["total_commands_processed"],
    ),
    (
        CounterMetricFamily,
        "flotilla_redis_cpu_seconds_total",
        "CPU time, user and system; all commands run on one core",
        lambda info: info["used_cpu_user"] + info["used_cpu_sys"],
    ),
    (
        CounterMetricFamily,
        "flotilla_redis_evicted_keys_total",
        "Keys evicted because memory was full, which may be jobs",
        lambda info: info["evicted_keys"],
    ),
    (
        GaugeMetricFamily,
        "flotilla_redis_evicts",
        "1 if maxmemory-policy evicts keys when memory is full",
        lambda info: bool(evicts(info)),
    ),
)
