"""The overview on a real Redis: what it reads, and how often."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from redis import Redis

from gateway.core.fleet_view import FleetView
from gateway.core.submitter import Submitter
from gateway.ops.overview.overview import Overview
from gateway.ops.overview.sampler import Sampler
from shared.fleet.registry import WorkerInfo
from shared.job.states import WorkerState
from shared.platform.metrics.gateway import GatewayMetrics
from shared.platform.tasks import TaskSupervisor
from shared.store.errors import StoreUnavailable
from shared.store.fleet_registry import Registry
from shared.store.health import Health
from shared.store.queue import Queue
from tests.store.conftest import (
    POOL,
    WORKER,
    claim,
    submit,
)

INTERVAL_S = 0.05
RELAY: Any = SimpleNamespace(is_subscribed=lambda shard: True)


def info(**changes: Any) -> WorkerInfo:
    fields: dict[str, Any] = {
        "id": WORKER,
        "pool": POOL,
        "state": WorkerState.READY,
        "engine": "simulated",
        "models": ("m",),
        "slots": 4,
        "running": 1,
        "jobs": 1,
        "kv_usage": 0.25,
        "host": "h",
        "pid": 1,
        "version": "0",
    }
    return WorkerInfo(**(fields | changes))


class Fleet:
    """A worker in the registry, and an overview with all that it needs."""

    def __init__(self, queue: Queue) -> None:
        primary = queue.servers.primary
        self.registry = Registry(primary)
        self.view = FleetView(queue)
        metrics = GatewayMetrics(CollectorRegistry())
        gateway: Any = SimpleNamespace(
            id="gw-1",
            queue=queue,
            fleet=self.view,
            metrics=metrics,
            health=Health(queue.servers, 0.9),
            tasks=TaskSupervisor(),
            submitter=Submitter(queue, RELAY, 1000, metrics),
        )
        self.overview = Overview(gateway)

    async def take(self) -> dict[str, Any]:
        return await self.overview.take()


@pytest.fixture
async def fleet(queue: Queue) -> Fleet:
    fleet = Fleet(queue)
    await fleet.registry.register_models(POOL, [{"id": "m"}])
    await fleet.registry.announce(info())
    await fleet.view.refresh()
    return fleet


async def test_without_redis_the_last_figures_stay(fleet: Fleet, queue: Queue) -> None:
    await submit(queue)
    assert (await fleet.take())["pools"][0]["waiting"] == 1

    async def fails(*_: object, **__: object) -> None:
        raise StoreUnavailable("it is away")

    fleet.view.refresh_workers = fails  # type: ignore[method-assign]
    found = await fleet.take()
    assert found["redis"]["ok"] is False
    assert found["verdict"]["problems"][0]["kind"] == "redis_unavailable"
    assert found["pools"][0]["waiting"] == 1


async def commands(store: Redis, sampler: Sampler, viewers: int, readings: int) -> float:
    """Commands to Redis for each reading, with so many viewers."""

    async def view() -> None:
        count = 0
        async with aclosing(sampler.follow()) as stream:
            async for _ in stream:
                count += 1
                if count == readings:
                    return

    before = executed(store)
    await asyncio.gather(*(view() for _ in range(viewers)))
    return (executed(store) - before) / readings


def executed(store: Redis) -> int:
    """All commands but those of the test itself."""
    stats = store.info("commandstats")
    return sum(each["calls"] for name, each in stats.items() if name != "cmdstat_info")


async def test_fifty_viewers_ask_redis_no_more_than_one(
    fleet: Fleet, queue: Queue, store: Redis
) -> None:
    for _ in range(5):
        await submit(queue)
    await claim(queue, 2)
    await fleet.take()
    readings = 5
    per_reading = []
    for viewers in (1, 50):
        sampler = Sampler(fleet.take, INTERVAL_S, linger_s=0)
        per_reading.append(await commands(store, sampler, viewers, readings))
        assert sampler._task is not None
        await asyncio.wait_for(sampler._task, 10)  # it ends when no viewer is left
    one, fifty = per_reading
    # One reading more may begin before the last viewer has left.
    assert fifty <= one * (readings + 1) / readings
    assert one < 60
