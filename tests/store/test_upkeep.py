"""Upkeep: silent workers, deadlines, gateways that are gone, the index, records nobody needs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from redis import Redis

from shared.job.job import NewJob
from shared.job.lanes import DEFAULT
from shared.platform.metrics.losses import ReaperMetrics
from shared.store import upkeep
from shared.store.queue import Queue
from shared.store.redis import keys
from shared.store.redis.fleet_registry import Registry
from shared.store.servers import Servers
from shared.store.upkeep import KEPT_S, Reaper, prune, rewrite_logs
from tests.harness.servers import RedisServer
from tests.harness.waiting import eventually
from tests.store.conftest import (
    GATEWAY,
    LEASE_S,
    POOL,
    TENANT,
    claim,
    claim_one,
    finish,
    gateway_messages,
    lease,
    lose_worker,
    make_answer,
    open_queue,
    submit,
)
from tests.store.test_registry import INFO

REAPED = f"{keys.base(0)}{keys.REAP_CLOCK}"
UNATTENDED = keys.base(0) + keys.UNATTENDED
METRICS = ReaperMetrics(CollectorRegistry())


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with open_queue(redis_url) as queue:
        yield queue


@pytest.fixture
def store(redis_server: RedisServer, redis_url: str) -> Iterator[Redis]:
    with redis_server.client() as client:
        yield client


@contextlib.asynccontextmanager
async def running(reaper: Reaper) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(reaper.run())
    try:
        yield task
    finally:
        # Python 3.11's wait_for, which redis-py calls, may swallow a cancellation.
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=0.1)


async def state(queue: Queue, job_id: str) -> str:
    job = await queue.get(job_id)
    return "gone" if job is None else job.state


async def test_a_round_leaves_nothing_for_the_next_however_much_there_is(
    queue: Queue, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_AT_ONCE", 3)
    silent = [await lease(queue) for _ in range(7)]
    for job in silent:
        await lose_worker(queue, store)
    late = [await submit(queue, deadline_s=1e-6) for _ in range(7)]
    gone = {f"job_{n:027x} {TENANT}": 1 for n in range(7)}
    store.zadd(f"{keys.base(0)}{keys.EXPIRING}", gone)
    store.zadd(keys.jobs(0, TENANT), {member.split()[0]: 1 for member in gone})
    registry = CollectorRegistry()
    reaps_since_long(store)
    await Reaper(queue, LEASE_S, ReaperMetrics(registry)).round()
    assert {await state(queue, job.id) for job in silent} == {"queued"}
    assert {await state(queue, job.id) for job in late} == {"expired"}
    counted = {
        name: registry.get_sample_value("flotilla_reaped_jobs_total", {"state": name})
        for name in ("queued", "expired", "failed")
    }
    assert counted == {"queued": 7, "expired": 7, "failed": 0}
    assert store.zcard(keys.jobs(0, TENANT)) == 14


async def test_a_sweep_goes_on_past_ids_that_were_deleted_or_are_used_again(
    queue: Queue, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_AT_ONCE", 3)
    expiring, listed = f"{keys.base(0)}{keys.EXPIRING}", keys.jobs(0, TENANT)
    gone = [f"job_{n:027x}" for n in range(12)]
    store.zadd(expiring, {f"{job_id} {TENANT}": n for n, job_id in enumerate(gone, 1)})
    store.zadd(listed, dict.fromkeys(gone[::2], 1))  # the others were deleted
    used = f"conv_{7:035x}"
    store.hset(keys.conversation(0, used), mapping={"tenant": TENANT})
    store.expire(keys.conversation(0, used), 600)
    again = await submit(queue)  # a job with this id has expired before
    store.zadd(expiring, {f"{used} {TENANT}": 1.5, f"{again.id} {TENANT}": 2.5})
    await Reaper(queue, LEASE_S, METRICS).round()
    assert store.zrange(listed, 0, -1) == [again.id.encode()]
    assert store.zrange(expiring, 0, -1) == [f"{used} {TENANT}".encode()]
    await queue.cancel(again.id, TENANT)
    assert store.zscore(expiring, f"{again.id} {TENANT}") is not None


async def test_only_one_of_two_reapers_runs_a_round(queue: Queue, store: Redis) -> None:
    store.set(keys.base(0) + keys.REAPER, 1)
    late = await submit(queue, deadline_s=1e-6)
    await Reaper(queue, LEASE_S, METRICS).round()
    assert await state(queue, late.id) == "queued"
    store.delete(keys.base(0) + keys.REAPER)
    await Reaper(queue, LEASE_S, METRICS).round()
    assert await state(queue, late.id) == "expired"
    assert 0 < store.pttl(keys.base(0) + keys.REAPER) <= 700


async def test_the_lock_of_one_shard_does_not_hold_the_others_up(
    redis_url: str, store: Redis
) -> None:
    async with open_queue(redis_url, shards=2) as queue:
        store.set(keys.base(0) + keys.REAPER, 1)
        jobs = [
            await submit(queue, id=f"job_{shard:03x}{shard:024x}", deadline_s=1e-6)
            for shard in (0, 1)
        ]
        reaper = Reaper(queue, LEASE_S, METRICS)
        for shard in (0, 1):
            await reaper.round(shard)
        assert [await state(queue, job.id) for job in jobs] == ["queued", "expired"]


async def test_running_it_takes_a_silent_workers_job_after_the_lease(
    queue: Queue,
) -> None:
    await submit(queue)
    job = await claim_one(queue, lease_s=0.2)

    async def taken() -> bool:
        return await state(queue, job.id) == "queued"

    async with running(Reaper(queue, 0.2, METRICS)):
        await eventually(taken, "the job is taken back")
    assert len(await claim(queue)) == 1


async def test_after_an_outage_holders_have_a_whole_lease_to_renew(
    queue: Queue, store: Redis
) -> None:
    """No worker could renew during the outage, so an old renewal does not mean a lost worker."""
    silent = await lease(queue)
    await lose_worker(queue, store)
    now_us = reaps_since_long(store)
    last_round_us = now_us - int((LEASE_S / 2 + 1) * 1e6)
    store.set(REAPED, f"{last_round_us} 0")
    reaper = Reaper(queue, LEASE_S, METRICS)
    await reaper.round()
    assert await state(queue, silent.id) == "in_progress"
    packed: Any = store.get(REAPED)
    last_us, back_us = map(int, packed.split())
    assert last_us == back_us >= now_us
    # The rounds after it come in time, so the lease runs out by the time they count.
    store.set(REAPED, f"{last_us} {back_us - int((LEASE_S - 1) * 1e6)}")
    store.delete(keys.base(0) + keys.REAPER)
    await reaper.round()
    assert await state(queue, silent.id) == "in_progress"
    store.set(REAPED, f"{last_us} {back_us - int((LEASE_S + 1) * 1e6)}")
    store.delete(keys.base(0) + keys.REAPER)
    await reaper.round()
    assert await state(queue, silent.id) == "queued"


async def test_the_first_round_of_all_takes_nothing(queue: Queue, store: Redis) -> None:
    """Redis may have lost its writes, or be another one."""
    silent = await lease(queue)
    await lose_worker(queue, store)
    await Reaper(queue, LEASE_S, METRICS).round()
    assert await state(queue, silent.id) == "in_progress"


def reaps_since_long(store: Redis) -> int:
    """Record rounds as if they had come in time for long; returns Redis' time in us."""
    now: Any = store.time()
    seconds, us = now
    now_us: int = seconds * 1_000_000 + us
    store.set(REAPED, f"{now_us} 0")
    return now_us


# --- clients that have left ---


async def test_a_lost_gateways_jobs_are_cancelled_after_their_grace(
    queue: Queue, store: Redis
) -> None:
    left = [await submit(queue, keep_s=keep_s) for keep_s in (0.0, 60.0, 60.0)]
    await claim(queue, count=2)  # some run, some wait
    kept = await submit(queue)
    shared = await submit(queue, keep_s=60.0)
    await queue.watch(shared.id, "gw-2", follow=True)
    with gateway_messages(store, "gw-2"):
        await reap_again(queue, store)
        due = dict(store.zrange(UNATTENDED, 0, -1, withscores=True))
        assert {each.decode() for each in due} == {job.id for job in left}
        now_us = reaps_since_long(store)
        # One without a grace has the time in which a gateway connects again.
        assert [round((due[job.id.encode()] - now_us) / 1e6, -1) for job in left] == [0, 60, 60]
        for job in left:
            store.zadd(UNATTENDED, {job.id: 1})
        await reap_again(queue, store)
    assert {await state(queue, job.id) for job in left} == {"cancelled"}
    assert {await state(queue, job.id) for job in (kept, shared)} == {"queued"}
    assert not store.exists(UNATTENDED)


async def test_a_gateway_that_receives_frames_again_keeps_its_jobs(
    queue: Queue, store: Redis
) -> None:
    job = await submit(queue, keep_s=0.0)
    await reap_again(queue, store)
    store.zadd(UNATTENDED, {job.id: 1})
    with gateway_messages(store):
        await reap_again(queue, store)
        assert not store.exists(UNATTENDED)
        await reap_again(queue, store)
    assert not store.exists(UNATTENDED)
    assert await state(queue, job.id) == "queued"


async def test_no_more_are_cancelled_in_one_call_than_asked_for(queue: Queue, store: Redis) -> None:
    for _ in range(5):
        job = await submit(queue, keep_s=60.0)
        await queue.unwatch(job.id, GATEWAY)
    for job_id in store.zrange(UNATTENDED, 0, -1):
        store.zadd(UNATTENDED, {job_id: 1})
    assert [(await queue.expire(0, 2))[0] for _ in range(4)] == [2, 2, 1, 0]


async def reap_again(queue: Queue, store: Redis) -> None:
    store.delete(keys.base(0) + keys.REAPER)
    await Reaper(queue, LEASE_S, METRICS).round()


# --- the index ---


def expire_record(store: Redis, job: NewJob) -> None:
    """Delete the job's record, as if its time to live had passed."""
    store.delete(keys.job(0, job.id))
    store.zadd(f"{keys.base(0)}{keys.EXPIRING}", {f"{job.id} {job.tenant}": 1})


async def swept(queue: Queue, n: int) -> int:
    """Sweep until `n` jobs were looked at; returns how many were."""
    total = 0

    async def enough() -> bool:
        nonlocal total
        total += await queue.sweep(0)
        return total >= n

    await eventually(enough, f"{n} swept")
    return total


async def test_sweeping_removes_deleted_jobs_and_nothing_else(queue: Queue, store: Redis) -> None:
    jobs = [await submit(queue) for _ in range(4)]
    other = await submit(queue, tenant="another-tenant", ttl_s=0.001)
    ended = [*jobs[::2], other]
    for job in ended:
        await queue.cancel(job.id, job.tenant)
    for job in jobs[::2]:
        expire_record(store, job)
    assert await swept(queue, 3) == 3
    assert await queue.sweep(0) == 0
    left = store.zrange(keys.jobs(0, TENANT), 0, -1)
    assert left == [jobs[1].id.encode(), jobs[3].id.encode()]


async def test_one_sweep_checks_the_oldest_only(queue: Queue, store: Redis) -> None:
    jobs = [await submit(queue) for _ in range(5)]
    for job in jobs:
        await queue.cancel(job.id, TENANT)
        expire_record(store, job)
    assert [await queue.sweep(0, limit=2) for _ in range(4)] == [2, 2, 1, 0]


async def test_sweeping_forgets_workers_that_are_gone_but_none_that_holds_a_job(
    queue: Queue, store: Redis
) -> None:
    for worker in ("holds", "idle"):
        await submit(queue)
        (job,) = await claim(queue, worker=worker)
    assert await finish(queue, job, make_answer()) == "ok"
    stream = keys.queue(0, POOL, DEFAULT)
    await queue.sweep(0)
    assert len(store.xinfo_consumers(stream, keys.GROUP)) == 2
    await queue.sweep(0, 100, dead_consumer_s=-0.001)
    assert [consumer["name"] for consumer in store.xinfo_consumers(stream, keys.GROUP)] == [
        b"holds"
    ]


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
    await queue.cancel(job.id, job.tenant)
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
