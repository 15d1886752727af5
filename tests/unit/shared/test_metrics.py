"""What gateways and workers export before anything has happened."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry

from shared.platform.metrics.families import Families
from shared.platform.metrics.gateway import GatewayMetrics

INFO = {
    "used_memory": 5,
    "maxmemory": 7,
    "aof_enabled": 1,
    "aof_last_write_status": "ok",
    "aof_last_bgrewrite_status": "err",
    "maxmemory_policy": "noeviction",
}


def values(registry: CollectorRegistry) -> dict[str, float]:
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def test_known_values_of_a_label_are_exported_as_0() -> None:
    registry: Any = CollectorRegistry()
    Families(registry).counter("things_total", "Things", "kind", values=("ab", "c"))
    assert {name: value for name, value in values(registry).items() if "created" not in name} == {
        "things_total[('kind', 'ab')]": 0.0,
        "things_total[('kind', 'c')]": 0.0,
    }


def test_what_redis_reports_is_exported_and_what_it_hides_is_left_out() -> None:
    registry = CollectorRegistry()
    GatewayMetrics(registry).redis.infos = [INFO]
    found = values(registry)
    server = "[('server', '0')]"
    assert found[f"flotilla_redis_memory_used_bytes{server}"] == 5
    assert found[f"flotilla_redis_aof_ok{server}"] == 0
    assert f"flotilla_redis_evicted_keys_total{server}" not in found
