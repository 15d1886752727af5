"""Upkeep: silent workers, deadlines, gateways that are gone, the index, records nobody needs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from redis import Redis

from shared.job.job import NewJob
from shared.platform.metrics.losses import UpkeepMetrics
from shared.platform.tasks import end
from shared.store import keys, upkeep
from shared.store.fleet_registry import Registry
from shared.store.queue import Queue
from shared.store.servers import Servers
from shared.store.upkeep import KEPT_S, Upkeep, prune, rewrite_logs
from tests.harness.servers import RedisServer
from tests.harness.waiting import eventually
from tests.store.conftest import POOL, TENANT, WORKER, lease, open_queue, submit
from tests.store.test_registry import INFO

METRICS = UpkeepMetrics(CollectorRegistry())


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with open_queue(redis_url) as queue:
        yield queue


@pytest.fixture
def store(redis_server: RedisServer, redis_url: str) -> Iterator[Redis]:
    with redis_server.client() as client:
        yield client


async def state(queue: Queue, job_id: str) -> str:
    (job,) = await queue.get(job_id)
    return "gone" if job is None else job.state


async def again(queue: Queue, store: Redis, metrics: UpkeepMetrics = METRICS) -> None:
    """A round, whoever had the lock."""
    store.delete(keys.upkeep(0))
    await Upkeep(queue, metrics).round(0)


async def test_a_round_leaves_nothing_for_the_next_however_much_there_is(
    queue: Queue, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_AT_ONCE", 3)
    silent = [await lease(queue) for _ in range(250)]
    store.zadd(keys.alive(0), {WORKER: 1})
    late = [await submit(queue, deadline_s=1e-6) for _ in range(7)]
    gone = {f"job_{n:027x} {TENANT}": 1 for n in range(7)}
    store.zadd(f"{keys.base(0)}expiring", gone)
    store.zadd(keys.jobs(0, TENANT), {member.split()[0]: 1 for member in gone})
    registry = CollectorRegistry()
    await again(queue, store, UpkeepMetrics(registry))
    assert {await state(queue, job.id) for job in silent} == {"queued"}
    assert {await state(queue, job.id) for job in late} == {"expired"}
    counted = {
        name: registry.get_sample_value("flotilla_reaped_jobs_total", {"state": name})
        for name in ("queued", "expired", "failed")
    }
    assert counted == {"queued": 250, "expired": 7, "failed": 0}
    assert registry.get_sample_value("flotilla_lost_workers_total") == 1
    assert store.zcard(keys.jobs(0, TENANT)) == 257


async def test_a_sweep_goes_on_past_ids_that_were_deleted_or_are_used_again(
    queue: Queue, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_AT_ONCE", 3)
    expiring, listed = f"{keys.base(0)}expiring", keys.jobs(0, TENANT)
    gone = [f"job_{n:027x}" for n in range(12)]
    store.zadd(expiring, {f"{job_id} {TENANT}": n for n, job_id in enumerate(gone, 1)})
    store.zadd(listed, dict.fromkeys(gone[::2], 1))  # the others were deleted
    used = f"conv_{7:035x}"
    store.hset(keys.conversation(0, used), mapping={"tenant": TENANT})
    store.expire(keys.conversation(0, used), 600)
    later = await submit(queue)  # a job with this id has expired before
    store.zadd(expiring, {f"{used} {TENANT}": 1.5, f"{later.id} {TENANT}": 2.5})
    await again(queue, store)
    assert store.zrange(listed, 0, -1) == [later.id.encode()]
    assert store.zrange(expiring, 0, -1) == [f"{used} {TENANT}".encode()]
    await queue.cancel(TENANT, later.id)
    assert store.zscore(expiring, f"{later.id} {TENANT}") is not None


async def test_only_one_of_two_processes_runs_a_round(queue: Queue, store: Redis) -> None:
    store.set(keys.upkeep(0), 1)
    late = await submit(queue, deadline_s=1e-6)
    await Upkeep(queue, METRICS).round(0)
    assert await state(queue, late.id) == "queued"
    await again(queue, store)
    assert await state(queue, late.id) == "expired"
    assert 0 < store.pttl(keys.upkeep(0)) <= 150


async def test_the_lock_of_one_shard_does_not_hold_the_others_up(
    redis_url: str, store: Redis
) -> None:
    async with open_queue(redis_url, shards=2) as queue:
        store.set(keys.upkeep(0), 1)
        jobs = [
            await submit(queue, id=f"job_{shard:03x}{shard:024x}", deadline_s=1e-6)
            for shard in (0, 1)
        ]
        for shard in (0, 1):
            await Upkeep(queue, METRICS).round(shard)
        assert [await state(queue, job.id) for job in jobs] == ["queued", "expired"]


async def test_running_it_takes_a_silent_workers_jobs(queue: Queue) -> None:
    held = await lease(queue)

    async def taken() -> bool:
        return await state(queue, held.id) == "queued"

    task = asyncio.create_task(Upkeep(queue, METRICS).run())
    try:
        await eventually(taken, "the job is taken back")
    finally:
        await end([task])


# --- the index ---


def expire_record(store: Redis, job: NewJob) -> None:
    """Delete the job's record, as if its time to live had passed."""
    store.delete(keys.job(0, job.id))
    store.zadd(f"{keys.base(0)}expiring", {f"{job.id} {job.tenant}": 1})


async def swept(queue: Queue, n: int) -> int:
    """Sweep until `n` jobs were looked at; returns how many were."""
    total = 0

    async def enough() -> bool:
        nonlocal total
        total += await queue.sweep(0, 100)
        return total >= n

    await eventually(enough, f"{n} swept")
    return total


async def test_sweeping_removes_deleted_jobs_and_nothing_else(queue: Queue, store: Redis) -> None:
    jobs = [await submit(queue) for _ in range(4)]
    other = await submit(queue, tenant="another-tenant", ttl_s=0.001)
    ended = [*jobs[::2], other]
    for job in ended:
        await queue.cancel(job.tenant, job.id)
    for job in jobs[::2]:
        expire_record(store, job)
    assert await swept(queue, 3) == 3
    assert await queue.sweep(0, 100) == 0
    left = store.zrange(keys.jobs(0, TENANT), 0, -1)
    assert left == [jobs[1].id.encode(), jobs[3].id.encode()]


async def test_one_sweep_checks_the_oldest_only(queue: Queue, store: Redis) -> None:
    jobs = [await submit(queue) for _ in range(5)]
    for job in jobs:
        await queue.cancel(TENANT, job.id)
        expire_record(store, job)
    assert [await queue.sweep(0, 2) for _ in range(4)] == [2, 2, 1, 0]


# --- maintenance ---


async def test_stale_records_are_removed(
    queue: Queue, store: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flotilla.maintenance")
    registry = Registry(queue.servers.primary)
    await registry.register_models("served", [{"id": "m"}])
    await submit(queue)  # the fleet has POOL now
    store.sadd(keys.WORKERS, "w-gone")
    scales = keys.first(keys.DOCUMENTS, "scale")
    for pool in ("served", POOL, "named", "forgotten"):
        store.hset(scales, pool, "x")
    store.hset(keys.MAINTENANCE_RUNS, mapping={"repair": 1, "forgotten": 1})
    await prune(queue, registry, ["named"], ["repair"])
    assert store.smembers(keys.WORKERS) == set()
    assert set(store.hkeys(scales)) == {b"served", POOL.encode(), b"named"}
    assert store.hkeys(keys.MAINTENANCE_RUNS) == [b"repair"]
    line = "removed stale records: 1 worker record, 1 scale record, 1 task record"
    assert line in caplog.text
    caplog.clear()
    await prune(queue, registry, ["named"], ["repair"])
    assert caplog.text == ""


async def test_a_model_is_forgotten_7_days_after_its_last_worker_and_job(
    queue: Queue, store: Redis
) -> None:
    registry = Registry(queue.servers.primary)

    async def after(seconds: float, *scaled: str) -> set[str]:
        """The pools with models after a round, so long after the last one."""
        for name, at in store.hgetall(keys.UNUSED_MODELS).items():
            store.hset(keys.UNUSED_MODELS, name, float(at) - seconds)
        await prune(queue, registry, scaled, [])
        return set(await registry.models())

    everything = {"unused", "scaled", POOL, INFO.pool}
    for name in everything:
        await registry.declare_models(name, [name])
    await registry.announce(INFO)
    job = await submit(queue)
    assert await after(0, "scaled") == everything
    assert await after(KEPT_S - 60, "scaled") == everything
    assert await after(120, "scaled") == everything - {"unused"}
    assert await after(KEPT_S) == everything - {"unused"}  # from now on it is not scaled
    assert await after(KEPT_S + 60) == {POOL, INFO.pool}
    await registry.leave(INFO.id)
    await queue.cancel(job.tenant, job.id)
    assert await after(KEPT_S + 60) == {POOL, INFO.pool}
    await registry.announce(INFO)
    assert await after(KEPT_S + 60) == {INFO.pool}
    await registry.leave(INFO.id)
    assert await after(KEPT_S + 60) == {INFO.pool}
    assert await after(KEPT_S + 60) == set()
    assert not store.exists(keys.UNUSED_MODELS)


async def test_a_part_of_a_transaction_is_not_carried_out_at_the_next_start(
    own_redis: RedisServer,
) -> None:
    """Redis was killed while it wrote a transaction to its append-only file."""
    with own_redis.client() as client:
        client.set("before", 1)
        folder = Path(str(client.config_get("dir")["dir"]))
    own_redis.stop()
    (log,) = list(folder.rglob("*.incr.aof"))  # noqa: ASYNC240
    multi, first = b"*1\r\n$5\r\nMULTI\r\n", b"*3\r\n$3\r\nSET\r\n$4\r\npart\r\n$1\r\n1\r\n"
    cut = multi + first + first[:20]
    log.write_bytes(log.read_bytes() + cut)
    own_redis.start()
    async with Servers(own_redis.url) as servers:
        for _ in range(2):
            await rewrite_logs(servers)

        async def is_written() -> bool:
            found = await servers.primary.info("persistence")
            return bool(found["aof_last_rewrite_time_sec"] >= 0)

        await eventually(is_written, "the append-only file is written anew")
        assert not await servers.primary.exists("part")
        await servers.primary.set("after", 1)
    own_redis.stop(kill=True)
    own_redis.start()
    with own_redis.client() as client:
        assert sorted(client.keys("[abp]*")) == [b"after", b"before"]
