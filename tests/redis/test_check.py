"""The reaper's check of unfinished jobs: those that no worker would get are requeued."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from redis import Redis

from shared.job.job import new_job_id
from shared.job.lanes import CLIENT_LANES, DEFAULT, FLEX
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from tests.harness.waiting import eventually
from tests.redis.conftest import (
    POOL,
    TENANT,
    answer,
    claim,
    claim_one,
    emit_token,
    entries_of,
    finish,
    lease,
    log_entries,
    open_queue,
    pending,
    submit,
)

STREAM = keys.queue(0, POOL, DEFAULT)
LINE = keys.waiting_of(0, POOL, DEFAULT, TENANT)
TURNS = keys.turns(0, POOL, DEFAULT)
CURSOR = f"{keys.base(0)}{keys.CHECKED}"


def dump(store: Redis) -> dict[bytes, Any]:
    """Everything in Redis but times to live, the cursor, and the order of a hash."""
    return {
        key: store.hgetall(key) if store.type(key) == b"hash" else store.dump(key)
        for key in store.scan_iter()
        if key != CURSOR.encode()
    }


@pytest.mark.parametrize("lost", [(LINE,), (TURNS,), (LINE, TURNS)], ids=["line", "turn", "both"])
async def test_a_job_that_is_in_no_line_waits_again_in_its_order(
    queue: JobQueue, store: Redis, lost: tuple[str, ...]
) -> None:
    jobs = [await submit(queue) for _ in range(5)]
    store.delete(*lost)
    assert await queue.check(0) == {job.id: "queued" for job in jobs} or lost == (TURNS,)
    assert await queue.check(0) == {}
    leased = await claim(queue)
    assert [job.id for job in leased] == [job.id for job in jobs]
    assert {job.attempt for job in leased} == {1}


async def test_a_job_that_no_worker_holds_is_continued(queue: JobQueue, store: Redis) -> None:
    job = await lease(queue)
    await emit_token(queue, job, 1)
    store.xgroup_destroy(STREAM, keys.GROUP)
    assert await queue.reap(0, 0.0) == {}, "the reaper does not find it"
    assert await queue.check(0) == {job.id: "queued"}
    assert await queue.check(0) == {}
    again = await claim_one(queue, worker="w-2")
    assert (again.id, again.generation) == (job.id, 2)
    assert [entry.seq for entry in await log_entries(queue, job.id, 0)] == [1]
    assert await finish(queue, job, 2, answer()) != "ok", "the worker before has lost it"
    assert await finish(queue, again, 2, answer()) == "ok"


async def test_it_is_not_blamed(queue: JobQueue, store: Redis) -> None:
    job = await lease(queue, max_attempts=1)
    store.xgroup_destroy(STREAM, keys.GROUP)
    assert await queue.check(0) == {job.id: "queued"}
    assert (await claim_one(queue)).id == job.id


async def test_entries_without_a_job_are_deleted(queue: JobQueue, store: Redis) -> None:
    job, ended = await submit(queue), await submit(queue)
    await queue.cancel(ended.id, TENANT)
    for job_id in (new_job_id(1), ended.id, job.id):
        store.xadd(STREAM, {"job": job_id})
        store.xadd(keys.queue(0, POOL, FLEX), {"job": job_id})
    assert await queue.check(0) == {}
    assert store.xlen(keys.queue(0, POOL, FLEX)) == 0
    assert entries_of(store, job.id) == [DEFAULT]
    assert (await claim_one(queue)).id == job.id


async def test_a_call_looks_at_a_few_and_the_next_one_goes_on(
    queue: JobQueue, store: Redis
) -> None:
    jobs = [await submit(queue, lane=lane) for lane in CLIENT_LANES for _ in range(15)]
    for lane in CLIENT_LANES:
        store.delete(keys.waiting_of(0, POOL, lane, TENANT))
    found: list[str] = []
    calls = 0
    while store.exists(CURSOR) or not calls:
        done = await queue.check(0, 10)
        assert len(done) <= 10
        found += done
        calls += 1
        assert calls < 50
    assert calls > 4
    assert set(found) == {job.id for job in jobs}
    assert {job.id for job in await claim(queue, 1000)} == {job.id for job in jobs}


async def test_a_sound_fleet_is_not_touched(queue: JobQueue, store: Redis) -> None:
    for lane in CLIENT_LANES:
        for tenant in (TENANT, "other"):
            await submit(queue, lane=lane, tenant=tenant, deadline_s=60)
    given_back, ended, watched, *_ = await claim(queue, 4)
    await queue.release([given_back], "drained", blame=False)
    await finish(queue, ended, 1, answer())
    await queue.watch(watched.id, "gw-2", follow=True)
    await emit_token(queue, watched, 1)
    before = dump(store)
    for limit in (2, 2, 100, 3, 100):
        assert await queue.check(0, limit) == {}
    assert dump(store) == before
    assert pending(store) > 0


async def test_it_may_run_at_any_time(queue: JobQueue, redis_url: str) -> None:
    """Jobs go through the fleet while three processes check them without a pause."""
    over = asyncio.Event()
    found: list[dict[str, str]] = []

    async def client() -> None:
        for _ in range(60):
            await submit(queue, lane=random.choice(CLIENT_LANES), deadline_s=60)

    async def worker(name: str) -> None:
        while not over.is_set():
            for job in await claim(queue, 3, worker=name):
                if random.random() < 0.3:
                    await queue.release([job], "drained", blame=False)
                else:
                    assert await finish(queue, job, 1, answer()) == "ok"
                    done.append(job.id)
            await asyncio.sleep(0)

    async def checker() -> None:
        async with open_queue(redis_url) as own:
            while not over.is_set():
                found.append(await own.check(0))

    async def all_done() -> bool:
        return len(done) >= 180

    done: list[str] = []
    async with asyncio.timeout(60):
        running = [asyncio.create_task(checker()) for _ in range(3)]
        running += [asyncio.create_task(worker(f"w-{n}")) for n in range(3)]
        await asyncio.gather(*(client() for _ in range(3)))
        await eventually(all_done, "every job is completed")
        over.set()
        await asyncio.gather(*running)
    assert len(set(done)) == 180
    assert len(found) > 3
    assert not any(found)
