"""Repair: what a Redis that lost writes, or a person who deleted a key, leaves behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from shared.job.job import new_job_id
from shared.job.lanes import CLIENT_LANES, DEFAULT, FLEX, LANES
from shared.job.replies import Repaired
from shared.store.redis import keys
from shared.store.redis.depths import depths
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.scan import Step
from tests.harness.waiting import eventually
from tests.redis.conftest import (
    LEASE_S,
    POOL,
    TENANT,
    WORKER,
    answer,
    claim,
    claim_one,
    emit,
    emit_token,
    entries_of,
    expire_lease,
    finish,
    lease,
    log_entries,
    log_flush,
    open_queue,
    output,
    pending,
    renew,
    repair,
    submit,
)

STREAM = keys.queue(0, POOL, DEFAULT)
WAITING = keys.waiting(0, POOL, DEFAULT)
DEADLINES = keys.base(0) + keys.DEADLINES
LISTED = keys.jobs(0, TENANT)
NOBODY = new_job_id(1)


def dump(store: Redis) -> dict[bytes, Any]:
    """Everything in Redis but times to live, and the order of a hash, which a read may change."""
    return {
        key: store.hgetall(key) if store.type(key) == b"hash" else store.dump(key)
        for key in store.scan_iter()
    }


# --- jobs that no index or stream has ---


async def test_a_lost_stream_is_made_again_in_its_order(queue: JobQueue, store: Redis) -> None:
    jobs = [await submit(queue) for _ in range(20)]
    store.delete(STREAM)
    assert await repair(queue) == {"entries": 20}
    assert await repair(queue) == {}
    assert [job.id for job in await claim(queue)] == [job.id for job in jobs]


async def test_counters_and_indexes_are_filled_again(queue: JobQueue, store: Redis) -> None:
    job = await submit(queue, deadline_s=1e-6)
    before = {key: store.zrange(key, 0, -1, withscores=True) for key in (WAITING, LISTED)}
    store.delete(WAITING, LISTED, DEADLINES, f"{keys.base(0)}{keys.POOL_NAMES}", STREAM)
    assert await repair(queue) == {
        "entries": 1,
        "waiting": 1,
        "deadlines": 1,
        "jobs": 1,
        "pool_names": 1,
    }
    assert {key: store.zrange(key, 0, -1, withscores=True) for key in before} == before
    assert [(d.lane, d.waiting) for d in await depths(queue) if d.waiting] == [(DEFAULT, 1)]
    assert await queue.expire(0, 10) == [job.id]
    assert entries_of(store, job.id) == []


def recreate_group_at_end(store: Redis, stream: str = STREAM) -> None:
    """Recreate the group at the end of the stream, so the old entries are never delivered."""
    if store.exists(stream) and store.xinfo_groups(stream):
        store.xgroup_destroy(stream, keys.GROUP)
    store.xgroup_create(stream, keys.GROUP, "$")


def read_by_hand(store: Redis, stream: str = STREAM) -> None:
    """Read the entry without leasing the job."""
    if not store.xinfo_groups(stream):
        store.xgroup_create(stream, keys.GROUP, "0")
    store.xreadgroup(keys.GROUP, "a person", {stream: ">"})


@pytest.mark.parametrize("damage", [recreate_group_at_end, read_by_hand])
async def test_an_entry_that_the_group_has_passed_is_claimed(
    queue: JobQueue, store: Redis, damage: Callable[[Redis], None]
) -> None:
    job = await submit(queue)
    damage(store)
    assert await repair(queue) == {}
    leased = await claim_one(queue)
    assert leased.id == job.id
    assert entries_of(store, job.id) == [DEFAULT]
    assert pending(store) == 1
    assert await renew(queue, WORKER, [leased]) == {}


async def test_a_job_that_was_claimed_without_its_entry_is_found_again(
    queue: JobQueue, store: Redis
) -> None:
    await submit(queue)
    store.delete(STREAM)
    job = await claim_one(queue)
    assert await queue.reap(0, 0.0) == {}
    assert await repair(queue) == {"entries": 1}
    assert await renew(queue, WORKER, [job]) == {}
    expire_lease(store, job)
    assert await queue.reap(0, 0.0) == {job.id: "queued"}


async def test_turns_are_made_again(queue: JobQueue, store: Redis) -> None:
    jobs = [await submit(queue, tenant=tenant) for tenant in ("a", "b", "a")]
    store.delete(keys.turns(0, POOL, DEFAULT), keys.waiting_of(0, POOL, DEFAULT, "a"))
    assert await repair(queue) == {"turns": 3}, "b has a set, and no turn"
    assert await repair(queue) == {}
    assert [job.id for job in await claim(queue)] == [jobs[0].id, jobs[1].id, jobs[2].id]


# --- jobs that a worker holds ---


def forget_consumer(store: Redis) -> None:
    store.xgroup_delconsumer(STREAM, keys.GROUP, WORKER)


def delete_stream(store: Redis) -> None:
    store.delete(STREAM)


@pytest.mark.parametrize("damage", [delete_stream, forget_consumer, recreate_group_at_end])
async def test_a_silent_workers_job_is_found_again(
    queue: JobQueue, store: Redis, damage: Callable[[Redis], None]
) -> None:
    job = await lease(queue)
    damage(store)
    assert await queue.reap(0, 0.0) == {}  # without a repair, the reaper never finds it
    assert await repair(queue) == {"entries": 1}
    assert await repair(queue) == {}
    # The entry is delivered again; the job stays with its holder.
    assert await claim(queue, worker="w-2") == []
    expire_lease(store, job)
    assert await queue.reap(0, LEASE_S) == {job.id: "queued"}
    assert (await claim_one(queue, worker="w-2")).id == job.id


@pytest.mark.parametrize("damage", [delete_stream, forget_consumer, recreate_group_at_end])
@pytest.mark.parametrize("read", [True, False])
async def test_a_living_workers_job_stays_its_own(
    queue: JobQueue, store: Redis, damage: Callable[[Redis], None], read: bool
) -> None:
    job = await lease(queue)
    damage(store)
    assert await repair(queue) == {"entries": 1}
    if read:
        assert await claim(queue, worker="w-2") == []
        assert await renew(queue, WORKER, [job]) == {}
        (entry,) = store.xpending_range(STREAM, keys.GROUP, "-", "+", 10)
        assert entry["consumer"] == WORKER.encode()
    assert await finish(queue, job, 1, answer()) == "ok"
    assert entries_of(store, job.id) == []
    assert await claim(queue, worker="w-2") == []


@pytest.mark.parametrize("damage", [delete_stream, forget_consumer, recreate_group_at_end])
async def test_a_living_worker_goes_on_before_anything_is_repaired(
    queue: JobQueue, store: Redis, damage: Callable[[Redis], None]
) -> None:
    job = await lease(queue)
    await emit_token(queue, job, 1)
    damage(store)
    assert await renew(queue, WORKER, [job]) == {}
    assert await emit_token(queue, job, 2) == {}
    assert [e.seq for e in await log_entries(queue, job.id, 0)] == [1, 2]
    assert await repair(queue) == {"entries": 1}


# --- entries without a job ---


async def test_entries_without_a_job(queue: JobQueue, store: Redis) -> None:
    job = await submit(queue)
    ended = await submit(queue)
    await queue.cancel(ended.id, TENANT)
    for fields in ({"job": NOBODY}, {"job": ended.id}, {"job": job.id}, {"what": "is this"}):
        store.xadd(STREAM, fields)
        store.xadd(keys.queue(0, POOL, FLEX), fields)
    assert await repair(queue) == {"stray entries": 6, "damaged entries": 2}
    assert entries_of(store, job.id) == [DEFAULT]
    assert await repair(queue) == {}
    assert (await claim_one(queue)).id == job.id


async def test_members_without_a_job(queue: JobQueue, store: Redis) -> None:
    running = await lease(queue, deadline_s=60)
    waiting = await submit(queue, deadline_s=60)
    ended = await submit(queue)
    await queue.cancel(ended.id, TENANT)
    every = {NOBODY: 1, ended.id: 1, running.id: 1, waiting.id: 1}
    store.zadd(WAITING, every, nx=True)
    store.zadd(keys.waiting(0, POOL, FLEX), every)
    store.zadd(DEADLINES, every, nx=True)
    store.zadd(LISTED, every, nx=True)
    assert await repair(queue) == {"stray waiting": 3 + 4, "stray deadlines": 2, "stray jobs": 1}
    assert store.zrange(WAITING, 0, -1) == [waiting.id.encode()]
    assert set(store.zrange(DEADLINES, 0, -1)) == {waiting.id.encode(), running.id.encode()}
    assert NOBODY.encode() not in store.zrange(LISTED, 0, -1)
    assert store.zcard(LISTED) == 3
    assert await repair(queue) == {}


async def test_the_log_of_a_job_that_was_deleted(queue: JobQueue, store: Redis) -> None:
    gone, fine, ended = await submit(queue), await submit(queue), await submit(queue)
    leased = {job.id: job for job in await claim(queue)}
    for job in leased.values():
        await emit_token(queue, job, 1)
        await emit(queue, [], log_flushes=[log_flush(output(job, 1), 1)], worker=WORKER)
    await finish(queue, leased[ended.id], 2, answer())
    logs = {job.id: keys.log(0, job.id) for job in (gone, fine, ended)}
    assert store.exists(*logs.values()) == 3
    store.delete(keys.job(0, gone.id), keys.job(0, ended.id))
    step = Step(0, keys.LOG, "", [job_id.encode() for job_id in logs])
    assert await queue.repair(*step) == {"stray logs": Repaired(1, (gone.id,))}
    assert [store.exists(key) for key in logs.values()] == [0, 1, 1]  # the last has a time to live
    done = await repair(queue)
    assert done == {"stray entries": 1, "stray jobs": 1}
    assert await repair(queue) == {}


async def test_jobs_that_expired_and_wait_for_the_sweep_are_no_damage(
    queue: JobQueue, store: Redis
) -> None:
    job = await submit(queue, ttl_s=0.001, body=b"x" * 5000)  # long enough to be counted
    await queue.cancel(job.id, TENANT)

    async def expired() -> bool:
        return not store.exists(keys.job(0, job.id))

    await eventually(expired, "its record has expired")
    assert await repair(queue) == {}
    assert (store.zcard(LISTED), store.exists(keys.kept(0, TENANT))) == (1, 1)
    assert await queue.sweep(0) == 1
    assert (store.zcard(LISTED), store.exists(keys.kept(0, TENANT))) == (0, 0)


async def test_damaged_hashes_stop_nothing(
    pytestconfig: pytest.Config, queue: JobQueue, store: Redis
) -> None:
    store.hset(keys.job(0, new_job_id(1)), mapping={"what": "is this"})
    store.hset(keys.job(0, new_job_id(1)), mapping={"state": "queued"})
    for request in (b"", b"\xc1", b"no array", b"\x92\xa1a\xa1b"):
        store.hset(keys.job(0, new_job_id(1)), mapping={"state": "queued", "request": request})
    store.hset(keys.job(0, "no id at all"), mapping={"state": "queued"})
    if pytestconfig.getoption("redis") != "cluster":
        store.set("flotilla:{99}:job:of-another-shard", "no hash")
    job = await submit(queue)
    store.delete(STREAM)
    assert await repair(queue) == {"entries": 1}
    assert (await claim_one(queue)).id == job.id


# --- what is as it should be ---


async def test_a_sound_fleet_is_not_touched(queue: JobQueue, store: Redis) -> None:
    for lane in CLIENT_LANES:
        for _ in range(3):
            await submit(queue, lane=lane, deadline_s=60)
    given_back, ended, watched, *_ = await claim(queue, 5)
    await queue.release([given_back], "drained", blame=False)
    await finish(queue, ended, 1, answer())
    await queue.watch(watched.id, "gw-2", follow=True)
    await emit_token(queue, watched, 1)
    assert store.exists(keys.fence(0, WORKER), keys.steps(0, WORKER)) == 2
    before = dump(store)
    assert await repair(queue) == {}
    assert dump(store) == before


async def test_repairs_may_run_at_any_time(queue: JobQueue, redis_url: str) -> None:
    """Jobs go through the fleet while three repairers scan it without a pause."""
    over = asyncio.Event()
    found: list[dict[str, int]] = []

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

    async def repairer() -> None:
        async with open_queue(redis_url) as own:
            while not over.is_set():
                found.append(await repair(own))

    async def all_done() -> bool:
        return len(done) >= 180

    done: list[str] = []
    async with asyncio.timeout(60):
        running = [asyncio.create_task(repairer()) for _ in range(3)]
        running += [asyncio.create_task(worker(f"w-{n}")) for n in range(3)]
        await asyncio.gather(*(client() for _ in range(3)))
        await eventually(all_done, "every job is completed")
        over.set()
        await asyncio.gather(*running)
    assert len(set(done)) == 180
    assert len(found) > 3
    assert not any(found)


async def test_two_processes_repair_the_same_damage_once(
    queue: JobQueue, store: Redis, redis_url: str
) -> None:
    jobs = [await submit(queue) for _ in range(300)]
    store.delete(STREAM, WAITING)
    async with open_queue(redis_url) as other:
        both = await asyncio.gather(repair(queue), repair(other))
    assert {what: sum(each.get(what, 0) for each in both) for what in ("entries", "waiting")} == {
        "entries": 300,
        "waiting": 300,
    }
    assert sorted(job.id for job in await claim(queue, 1000)) == sorted(job.id for job in jobs)


async def test_every_shard_is_scanned(redis_url: str, store: Redis) -> None:
    async with open_queue(redis_url, shards=3) as queue:
        jobs = [await submit(queue, id=new_job_id(3)) for _ in range(30)]
        for shard in range(3):
            store.delete(*(keys.queue(shard, POOL, lane) for lane in LANES))
        assert await repair(queue) == {"entries": 30}
        got = [job.id for shard in range(3) for job in await claim(queue, shard=shard)]
        assert sorted(got) == sorted(job.id for job in jobs)
