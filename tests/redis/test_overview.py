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
from shared.job.fair_shares import Account
from shared.job.lanes import DEFAULT
from shared.job.states import JobEvent, WorkerState
from shared.platform.metrics.gateway import GatewayMetrics
from shared.platform.tasks import TaskSupervisor
from shared.store.interface import StoreUnavailable
from shared.store.redis import keys
from shared.store.redis.depths import depths
from shared.store.redis.desired_pools import DesiredPools
from shared.store.redis.eviction import EvictionMonitor
from shared.store.redis.fleet_registry import Registry
from shared.store.redis.format_version import FormatMonitor
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.memory_monitor import MemoryMonitor
from shared.store.redis.scale_store import ScaleStore
from shared.store.redis.throughput import throughput
from shared.tenants.tenant import Tenant
from tests.redis.conftest import (
    LEASE_S,
    POOL,
    TENANT,
    WORKER,
    answer,
    claim,
    claim_one,
    finish,
    submit,
)

INTERVAL_S = 0.05


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
        "metrics_port": 0,
    }
    return WorkerInfo(**(fields | changes))


class Fleet:
    """A worker in the registry, and an overview with all that it needs."""

    def __init__(self, queue: JobQueue, only_tenant: str = "") -> None:
        primary = queue.servers.primary
        self.registry = Registry(primary)
        self.desired = DesiredPools(primary)
        self.view = FleetView(self.registry, ScaleStore(primary), desired=self.desired)
        metrics = GatewayMetrics(CollectorRegistry())
        self.eviction = EvictionMonitor([primary])
        gateway: Any = SimpleNamespace(
            id="gw-1",
            queue=queue,
            fleet=self.view,
            metrics=metrics,
            eviction=self.eviction,
            admission=SimpleNamespace(memory=MemoryMonitor(queue, 0.9, self.view.mean_tokens)),
            format=FormatMonitor(primary, 1),
            tasks=TaskSupervisor(),
            keys=SimpleNamespace(
                tenants=(Tenant(only_tenant, 1, operator=False),) if only_tenant else ()
            ),
            submitter=Submitter(queue, 1000, metrics),
        )
        self.overview = Overview(gateway)

    async def take(self) -> dict[str, Any]:
        return await self.overview.take()


@pytest.fixture
async def fleet(queue: JobQueue) -> Fleet:
    fleet = Fleet(queue)
    await fleet.registry.register_models(POOL, [{"id": "m"}])
    await fleet.registry.announce(info())
    await fleet.view.refresh()
    return fleet


async def test_the_counters_of_jobs(queue: JobQueue) -> None:
    async def total() -> tuple[int, dict[str, int]]:
        pools = {lane.pool for lane in await depths(queue)}
        found = await throughput(queue, pools)
        return found.submitted, dict(found.ended)

    assert await total() == (0, {})
    done = await submit(queue)
    leased = await claim_one(queue)
    assert await finish(queue, leased, 1, answer()) == "ok"
    waits = await submit(queue)
    assert await total() == (2, {})
    await queue.cancel(waits.id, TENANT)
    await submit(queue)
    failing = await claim_one(queue)
    failed = answer(event=JobEvent.FAIL, error_code="rejected", status=400)
    assert await finish(queue, failing, 1, failed) == "ok"
    assert await total() == (3, {"cancelled": 1, "failed": 1})
    assert done.id != waits.id


async def test_a_damaged_counter_begins_anew(queue: JobQueue, store: Redis) -> None:
    for wrong in ("string", "field"):
        store.delete(keys.base(0) + keys.ENDED)
        if wrong == "string":
            store.set(keys.base(0) + keys.ENDED, "wrong")
        else:
            store.hset(keys.base(0) + keys.ENDED, "cancelled", "many")
        assert (await throughput(queue, [])).ended == {}
        job = await submit(queue)
        await queue.cancel(job.id, TENANT)
        assert (await throughput(queue, [])).ended == {"cancelled": 1}


async def test_an_overview(fleet: Fleet, queue: JobQueue) -> None:
    await submit(queue)
    leased = await claim_one(queue)
    await fleet.registry.announce(info(job_ids=(leased.id,)))
    await queue.renew(0, WORKER, "", LEASE_S, [], {Account(POOL, DEFAULT, "a"): 300.0})
    for tenant in ("a", "a", "b"):
        await submit(queue, tenant=tenant)
    await fleet.eviction.check()
    found = await fleet.take()
    assert found["verdict"]["level"] == "ok", found["verdict"]
    (pool,) = found["pools"]
    assert (pool["waiting"], pool["running"], pool["slots"], pool["busy"]) == (3, 1, 4, 1)
    assert {lane["lane"]: lane["waiting"] for lane in pool["lanes"]}["default"] == 3
    tenants = {each["tenant"]: (each["waiting"], each["running"]) for each in pool["tenants"]}
    assert tenants == {"a": (2, 0), "b": (1, 0), TENANT: (0, 1)}
    served = {each["tenant"]: each["served"] for each in pool["tenants"]}
    assert served == {"a": 0.667, "b": 0.333, TENANT: None}, "b is lifted to half of a's level"
    (worker,) = found["workers"]
    assert (worker["id"], worker["state"], worker["jobs"]) == (WORKER, "ready", [leased.id])
    assert 0 <= worker["heartbeat_age_s"] < 5
    assert found["simulated"] is True
    assert found["redis"]["used_memory"] > 0
    assert found["history"]["waiting"] == [3]
    assert found["rates"]["submitted"] is None
    assert (await fleet.take())["rates"]["submitted"] is not None


async def test_switches_and_letters(fleet: Fleet, store: Redis) -> None:
    await fleet.desired.pause(POOL)
    await fleet.desired.stop_intake(POOL)
    await fleet.view.refresh()
    store.xadd(keys.dead_letters(0), {"what": "attempts", "id": "x", "reason": "r"})
    found = await fleet.take()
    (pool,) = found["pools"]
    assert (pool["paused"], pool["intake_stopped"]) == (True, True)
    kinds = {problem["kind"] for problem in found["verdict"]["problems"]}
    assert kinds == {"pool_paused", "intake_stopped", "dead_letters"}
    assert found["dead_letters"] == 1
    await fleet.desired.resume(POOL)
    await fleet.view.refresh()
    (pool,) = (await fleet.take())["pools"]
    assert (pool["paused"], pool["intake_stopped"]) == (False, False)


async def test_without_redis_the_last_figures_stay(fleet: Fleet, queue: JobQueue) -> None:
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
    fleet: Fleet, queue: JobQueue, store: Redis
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
