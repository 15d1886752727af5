"""Finish: nothing left queued; a repeated call does nothing. What callers see is in tests/store."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest
from redis import Redis

from shared.job.lanes import DEFAULT
from shared.job.packing import pack
from shared.job.states import JobEvent
from shared.store.interface import StoreRefused
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.scripts.emit import make_step
from tests.harness.waiting import eventually
from tests.redis.conftest import (
    LEASE_S,
    POOL,
    WORKER,
    ChannelSubscriber,
    answer,
    claim,
    claim_one,
    emit_token,
    end_without_output,
    entries_of,
    expire_lease,
    finish,
    lease,
    log_entries,
    make_job,
    next_fence_token,
    output,
    pending,
    submit,
    submit_one,
)


@pytest.mark.parametrize("event", [JobEvent.COMPLETE, JobEvent.FAIL])
async def test_nothing_is_left_of_it_but_its_hash_and_its_log(
    queue: JobQueue, store: Redis, event: JobEvent
) -> None:
    leased = await lease(queue, deadline_s=600, ttl_s=60)
    await finish(queue, leased, 1, answer(event=event, error_code="x" * (event is JobEvent.FAIL)))
    assert entries_of(store, leased.id) == []
    assert pending(store) == 0
    kept = {keys.job(0, leased.id), keys.log(0, leased.id)}
    assert {key.decode() for key in store.keys(f"*{leased.id}")} == kept
    assert store.keys("*deadlines") == store.keys("*waiting*") == []
    for key in kept:
        assert 59_000 < store.pttl(key) <= 60_000


async def test_hash_and_log_end_at_the_same_moment(queue: JobQueue, store: Redis) -> None:
    leased = await lease(queue)
    await finish(queue, leased, 1, answer())
    pipe = store.pipeline()
    pipe.pttl(keys.job(0, leased.id)).pttl(keys.log(0, leased.id))
    first, second = pipe.execute()
    assert first == pytest.approx(second, abs=500)


async def test_finished_twice_it_ends_once(
    queue: JobQueue, store: Redis, gateway: ChannelSubscriber
) -> None:
    leased = await lease(queue)
    assert await finish(queue, leased, 1, answer()) == "ok"
    before = store.hgetall(keys.job(0, leased.id))
    gateway.frames()
    assert await finish(queue, leased, 1, answer()) == "ok"
    assert store.hgetall(keys.job(0, leased.id)) == before
    assert len(await log_entries(queue, leased.id, 0)) == 1
    assert gateway.frames() == []


async def test_a_repeated_finish_changes_and_publishes_nothing(
    queue: JobQueue, store: Redis, gateway: ChannelSubscriber
) -> None:
    for _ in range(2):
        await submit(queue)
    ends, goes_on = await claim(queue)
    renewal = await queue.renew(0, WORKER, "", LEASE_S, [ends, goes_on])
    step = make_step([output(ends, 1, answer=answer()), output(goes_on, 1)])
    assert await queue.emit(0, WORKER, renewal.fence_token, step) == {}
    before = {key: store.dump(key) for key in store.scan_iter()}
    gateway.frames()
    assert await queue.emit(0, WORKER, renewal.fence_token, step, repeated=True) == {}
    assert {key: store.dump(key) for key in store.scan_iter()} == before
    assert gateway.frames() == []


async def test_the_end_of_one_job_invalidates_no_fence(queue: JobQueue) -> None:
    for _ in range(2):
        await submit(queue)
    first, second = await claim(queue)
    fence_token = (await queue.renew(0, WORKER, "", LEASE_S, [first, second])).fence_token
    end = make_step([end_without_output(first, 1, answer())])
    assert await queue.emit(0, WORKER, fence_token, end) == {}
    assert await queue.emit(0, WORKER, fence_token, make_step([output(second, 1)])) == {}


async def test_writes_that_a_failed_call_deferred_are_not_done_by_the_next(
    queue: JobQueue, store: Redis
) -> None:
    fence_token = await next_fence_token(queue)
    for _ in range(2):
        await submit(queue)
    broken, sound = await claim(queue)
    step = make_step([end_without_output(broken, 1, answer())])
    log_flushes, results = msgpack.unpackb(step.flushes_and_results, raw=True)
    malformed = replace(step, flushes_and_results=pack([log_flushes, [*results, "no result"]]))
    with pytest.raises(StoreRefused, match="table expected"):
        await queue.emit(0, WORKER, fence_token, malformed)
    assert await finish(queue, sound, 1, answer()) == "ok"
    assert entries_of(store, broken.id) == [DEFAULT]
    assert pending(store) == 1


async def test_a_late_end_does_not_stop_the_others_of_its_step(
    queue: JobQueue, store: Redis, gateway: ChannelSubscriber
) -> None:
    for _ in range(2):
        await submit(queue)
    mine, gone = await claim(queue)
    fence_token = (await queue.renew(0, WORKER, "", LEASE_S, [mine, gone])).fence_token
    store.delete(keys.job(0, gone.id))  # without a change of the fence
    step = make_step([end_without_output(gone, 1, answer()), end_without_output(mine, 1, answer())])
    assert await queue.emit(0, WORKER, fence_token, step) == {gone.id: "gone"}
    assert [frame[0].decode() for frame in gateway.frames()] == [mine.id]
    assert not store.exists(keys.log(0, gone.id))


async def test_a_worker_that_lost_the_job_gets_its_state(queue: JobQueue, store: Redis) -> None:
    old = await lease(queue)
    expire_lease(store, old)
    await queue.reap(0, 1.0)
    assert await finish(queue, old, 1, answer()) == "queued"
    new = await claim_one(queue, worker="w-2")
    assert await finish(queue, old, 1, answer()) == "in_progress"
    assert await finish(queue, new, 1, answer()) == "ok"
    assert await finish(queue, old, 1, answer()) == "completed"
    store.delete(keys.job(0, old.id))
    assert await finish(queue, old, 1, answer()) == "gone"


async def test_the_end_of_one_job_leaves_the_others_alone(queue: JobQueue, store: Redis) -> None:
    for _ in range(3):
        await submit(queue)
    first, *others = await claim(queue)
    await finish(queue, first, 1, answer())
    assert pending(store) == store.xlen(keys.queue(0, POOL, DEFAULT)) == 2
    for job in others:
        assert await emit_token(queue, job, 1) == {}


async def test_a_job_is_deleted_when_its_time_is_over(queue: JobQueue, store: Redis) -> None:
    job = make_job(ttl_s=0.001)
    await submit_one(queue, job, 9)
    await finish(queue, await claim_one(queue), 1, answer())

    async def gone() -> bool:
        return await queue.get(job.id) is None

    await eventually(gone, "the job is deleted")
    assert not store.exists(keys.log(0, job.id))
