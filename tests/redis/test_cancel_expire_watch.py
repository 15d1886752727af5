"""Cancel, expire and watch: what they leave in Redis. What callers see is in tests/store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from redis import Redis

from shared.job.frames import FrameKind
from shared.job.job import LeasedJob, new_job_id
from shared.job.lanes import DEFAULT
from shared.job.replies import Fenced, Renewal
from shared.job.states import JobState
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.scripts.emit import make_step
from tests.redis.conftest import (
    GATEWAY,
    LEASE_S,
    POOL,
    TENANT,
    WORKER,
    ChannelSubscriber,
    answer,
    claim,
    claim_one,
    emit,
    emit_token,
    entries_of,
    finish,
    lease,
    log_entries,
    log_flush,
    output,
    pass_deadline,
    pending,
    renew,
    submit,
)


async def state_of(queue: JobQueue, job_id: str) -> tuple[str, str]:
    job = await queue.get(job_id)
    assert job is not None
    return job.state, job.error_code


async def test_a_queued_job_is_cancelled_at_once(
    queue: JobQueue, store: Redis, gateway: ChannelSubscriber, control: ChannelSubscriber
) -> None:
    job = await submit(queue, deadline_s=60)
    assert await queue.cancel(job.id, TENANT) is JobState.CANCELLED
    assert await state_of(queue, job.id) == ("cancelled", "cancelled")
    assert gateway.frames() == [(job.id.encode(), 1, FrameKind.ENDED, b"", b"")]
    assert control.messages() == []
    assert store.keys("*waiting*") == store.keys("*deadlines") == []
    assert store.pttl(keys.job(0, job.id)) > 0
    assert store.pttl(keys.log(0, job.id)) > 0
    assert await claim(queue) == []
    assert entries_of(store, job.id) == []


async def test_a_cancelled_job_keeps_its_output_and_its_worker_is_notified(
    queue: JobQueue, store: Redis, gateway: ChannelSubscriber, control: ChannelSubscriber
) -> None:
    job = await lease(queue)
    await emit_token(queue, job, 1, "kept")
    gateway.frames()
    assert await queue.cancel(job.id, TENANT) is JobState.CANCELLED
    assert control.dropped() == [job.id]
    assert gateway.frames() == [(job.id.encode(), 2, FrameKind.ENDED, b"", b"")]
    assert [(e.items, e.end) for e in await log_entries(queue, job.id, 0)] == [
        ((b"kept",), ""),
        ((), "cancelled"),
    ]
    assert entries_of(store, job.id) == []
    assert pending(store) == 0
    assert await emit_token(queue, job, 2) == {job.id: "cancelled"}
    assert len(await log_entries(queue, job.id, 0)) == 2


async def test_the_output_of_a_cancelled_job_does_not_depend_on_its_worker(
    queue: JobQueue, store: Redis
) -> None:
    job = await lease(queue)
    await emit_token(queue, job, 1, "long ago")
    await emit(queue, [], log_flushes=[log_flush(output(job, 1, "long ago"), 1)])
    await emit_token(queue, job, 2, "just now")
    await queue.cancel(job.id, TENANT)
    store.delete(keys.steps(0, WORKER))
    assert [(e.seq, e.items, e.end) for e in await log_entries(queue, job.id, 0)] == [
        (1, (b"long ago",), ""),
        (2, (b"just now",), ""),
        (3, (), "cancelled"),
    ]


async def test_cancelling_an_ended_job_changes_nothing(
    queue: JobQueue, store: Redis, gateway: ChannelSubscriber
) -> None:
    job = await lease(queue)
    await finish(queue, job, 1, answer())
    before = store.hgetall(keys.job(0, job.id))
    gateway.frames()
    assert await queue.cancel(job.id, TENANT) is JobState.COMPLETED
    assert store.hgetall(keys.job(0, job.id)) == before
    assert gateway.frames() == []


async def cancel(queue: JobQueue, store: Redis, job: LeasedJob) -> None:
    await queue.cancel(job.id, TENANT)


async def expire(queue: JobQueue, store: Redis, job: LeasedJob) -> None:
    pass_deadline(store, job.id)
    await queue.expire(0, 100)


async def watch(queue: JobQueue, store: Redis, job: LeasedJob) -> None:
    await queue.watch(job.id, "gw-2", follow=False)


async def follow(queue: JobQueue, store: Redis, job: LeasedJob) -> None:
    await queue.watch(job.id, GATEWAY, follow=True)


@pytest.mark.parametrize("change", [cancel, expire, watch, follow])
async def test_a_worker_receives_a_change_before_it_writes_again(
    queue: JobQueue,
    store: Redis,
    gateway: ChannelSubscriber,
    change: Callable[[JobQueue, Redis, LeasedJob], Awaitable[None]],
) -> None:
    changed, other = [await submit(queue, deadline_s=60) for _ in range(2)]
    jobs = await claim(queue)
    before = await queue.renew(0, WORKER, "", LEASE_S, jobs)
    await change(queue, store, jobs[0])
    gateway.frames()
    # The worker has not received the change, and sends output of the other job only.
    with pytest.raises(Fenced):
        await queue.emit(0, WORKER, before.fence_token, make_step([output(jobs[1], 1)]))
    assert await log_entries(queue, other.id, 0) == []
    assert gateway.frames() == []
    after = await queue.renew(0, WORKER, before.fence_token, LEASE_S, jobs)
    assert after.fence_token != before.fence_token
    if change in (cancel, expire):
        assert after.lost == {changed.id: (await state_of(queue, changed.id))[0]}
    else:
        watchers = (f"{GATEWAY} gw-2", False) if change is watch else (GATEWAY, True)
        assert after == Renewal(
            after.fence_token, {}, {changed.id: watchers, other.id: (GATEWAY, False)}
        )
    assert await queue.emit(0, WORKER, after.fence_token, make_step([output(jobs[1], 1)])) == {}
    assert len(await log_entries(queue, other.id, 0)) == 1


@pytest.mark.parametrize("change", [cancel, expire, watch, follow])
async def test_a_change_to_a_queued_job_invalidates_no_fence(
    queue: JobQueue,
    store: Redis,
    change: Callable[[JobQueue, Redis, LeasedJob], Awaitable[None]],
) -> None:
    held = await lease(queue)
    await queue.release([held], "drained", blame=False)  # it has had a worker
    renewal = await queue.renew(0, WORKER, "", LEASE_S, [])
    await change(queue, store, held)
    assert await queue.emit(0, WORKER, renewal.fence_token, make_step([])) == {}


async def test_a_change_to_one_workers_job_invalidates_no_other_fence(queue: JobQueue) -> None:
    await submit(queue)
    mine = await claim_one(queue, worker="w-2")
    others = await lease(queue)
    await renew(queue, WORKER, [others])
    renewal = await queue.renew(0, "w-2", "", LEASE_S, [mine])
    await queue.cancel(others.id, TENANT)
    assert await queue.emit(0, "w-2", renewal.fence_token, make_step([output(mine, 1)])) == {}


async def test_a_requeued_job_can_be_cancelled(queue: JobQueue, store: Redis) -> None:
    job = await lease(queue)
    await queue.release([job], "drained", blame=False)
    assert await queue.cancel(job.id, TENANT) is JobState.CANCELLED
    assert await claim(queue) == []
    assert entries_of(store, job.id) == []


async def test_the_deadline_of_a_vanished_job_is_forgotten(queue: JobQueue, store: Redis) -> None:
    job = await submit(queue, deadline_s=1e-6)
    store.delete(keys.job(0, job.id))
    await queue.expire(0, 100)
    assert store.keys("*deadlines") == []


async def test_an_ended_job_does_not_expire(queue: JobQueue, store: Redis) -> None:
    job = await lease(queue)
    await finish(queue, job, 1, answer())
    deadlines = keys.base(0) + keys.DEADLINES
    store.zadd(deadlines, {job.id: 1})
    await queue.expire(0, 100)
    assert await state_of(queue, job.id) == ("completed", "")
    assert not store.exists(deadlines)


async def test_watching_again_invalidates_no_fence(queue: JobQueue) -> None:
    leased = await lease(queue, gateway="")
    await queue.watch(leased.id, GATEWAY, follow=True)
    renewal = await queue.renew(0, WORKER, "", LEASE_S, [leased])
    for follow in (True, False):
        await queue.watch(leased.id, GATEWAY, follow=follow)
    assert await queue.emit(0, WORKER, renewal.fence_token, make_step([output(leased, 1)])) == {}


async def test_watching_an_ended_job_changes_nothing(queue: JobQueue, store: Redis) -> None:
    leased = await lease(queue)
    await finish(queue, leased, 1, answer())
    before = {key: store.dump(key) for key in store.scan_iter()}
    await queue.watch(leased.id, "late", follow=True)
    assert {key: store.dump(key) for key in store.scan_iter()} == before


async def test_watching_an_unknown_job_writes_nothing(queue: JobQueue, store: Redis) -> None:
    await queue.watch(new_job_id(1), GATEWAY, follow=True)
    assert store.keys() == []


async def test_a_job_that_is_cancelled_while_it_waits_leaves_nothing_in_the_stream(
    queue: JobQueue, store: Redis
) -> None:
    for _ in range(5):
        await queue.cancel((await submit(queue)).id, TENANT)
    assert store.xlen(keys.queue(0, POOL, DEFAULT)) == 0
