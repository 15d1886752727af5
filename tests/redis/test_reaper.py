"""The reaper: silent workers, deadlines and the index, by one process at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from redis import Redis

from shared.platform.metrics.losses import ReaperMetrics
from shared.store.redis import keys
from shared.store.redis import reaper as module
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.reaper import Reaper
from tests.harness.waiting import eventually
from tests.redis.conftest import (
    LEASE_S,
    TENANT,
    claim,
    claim_one,
    expire_lease,
    lease,
    open_queue,
    submit,
)

REAPED = f"{keys.base(0)}{keys.REAP_CLOCK}"
METRICS = ReaperMetrics(CollectorRegistry())


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


async def state(queue: JobQueue, job_id: str) -> str:
    job = await queue.get(job_id)
    return "gone" if job is None else job.state


async def test_a_round_leaves_nothing_for_the_next_however_much_there_is(
    queue: JobQueue, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 3)
    silent = [await lease(queue) for _ in range(7)]
    for job in silent:
        expire_lease(store, job)
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
    queue: JobQueue, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 3)
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


async def test_a_round_reaps_expires_and_sweeps(queue: JobQueue, store: Redis) -> None:
    silent = await lease(queue)
    expire_lease(store, silent)
    late = await submit(queue, deadline_s=1e-6)
    forgotten = await submit(queue)
    await queue.cancel(forgotten.id, TENANT)
    store.delete(keys.job(0, forgotten.id))
    store.zadd(f"{keys.base(0)}{keys.EXPIRING}", {f"{forgotten.id} {TENANT}": 1})
    reaps_since_long(store)
    await Reaper(queue, LEASE_S, METRICS).round()
    assert await state(queue, silent.id) == "queued"
    assert await state(queue, late.id) == "expired"
    assert store.zscore(keys.jobs(0, TENANT), forgotten.id) is None
    assert store.zcard(keys.jobs(0, TENANT)) == 2


async def test_only_one_of_two_reapers_runs_a_round(queue: JobQueue, store: Redis) -> None:
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
    queue: JobQueue,
) -> None:
    await submit(queue)
    job = await claim_one(queue, lease_s=0.2)

    async def taken() -> bool:
        return await state(queue, job.id) == "queued"

    async with running(Reaper(queue, 0.2, METRICS)):
        await eventually(taken, "the job is taken back")
    assert len(await claim(queue)) == 1


async def test_after_an_outage_holders_have_a_whole_lease_to_renew(
    queue: JobQueue, store: Redis
) -> None:
    """No worker could renew during the outage, so an old renewal does not mean a lost worker."""
    silent = await lease(queue)
    expire_lease(store, silent)
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


async def test_the_first_round_of_all_takes_nothing(queue: JobQueue, store: Redis) -> None:
    """Redis may have lost its writes, or be another one."""
    silent = await lease(queue)
    expire_lease(store, silent)
    await Reaper(queue, LEASE_S, METRICS).round()
    assert await state(queue, silent.id) == "in_progress"


def reaps_since_long(store: Redis) -> int:
    """Record rounds as if they had come in time for long; returns Redis' time in us."""
    now: Any = store.time()
    seconds, us = now
    now_us: int = seconds * 1_000_000 + us
    store.set(REAPED, f"{now_us} 0")
    return now_us
