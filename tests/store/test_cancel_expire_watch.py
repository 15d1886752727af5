"""What clients and the clock do to a job: cancel, expire, watch."""

from __future__ import annotations

import pytest
from redis import Redis

from shared.job.frames import FrameKind
from shared.job.job import LeasedJob, new_job_id
from shared.job.states import JobState
from shared.store.interface import Store
from tests.redis.conftest import (
    GATEWAY,
    LEASE_S,
    TENANT,
    WORKER,
    ChannelSubscriber,
    answer,
    claim_one,
    emit,
    emit_token,
    finish,
    lease,
    log_entries,
    log_flush,
    output,
    pass_deadline,
    submit,
)
from tests.redis.test_cancel_expire_watch import state_of


async def test_cancelled_twice_is_cancelled_once(queue: Store) -> None:
    job = await submit(queue)
    assert await queue.cancel(job.id, TENANT) is JobState.CANCELLED
    assert await queue.cancel(job.id, TENANT) is JobState.CANCELLED
    assert len(await log_entries(queue, job.id, 0)) == 1


async def test_another_tenants_job_is_not_found(queue: Store) -> None:
    job = await submit(queue)
    assert await queue.cancel(job.id, "another-tenant") is None
    assert await queue.cancel(new_job_id(1), TENANT) is None
    assert await queue.cancel("nonsense", TENANT) is None
    assert await state_of(queue, job.id) == ("queued", "")


@pytest.mark.parametrize("started", [False, True])
async def test_a_job_whose_time_is_over_expires(
    queue: Store,
    server: Redis,
    gateway: ChannelSubscriber,
    control: ChannelSubscriber,
    started: bool,
) -> None:
    job = await submit(queue, deadline_s=60)
    if started:
        await emit_token(queue, await claim_one(queue), 1)
        gateway.frames()
    pass_deadline(server, job.id)
    assert await queue.expire(0, 100) == (1, {job.id: "expired"})
    assert await state_of(queue, job.id) == ("expired", "deadline_exceeded")
    assert [f[1:3] for f in gateway.frames()] == [(1 + started, FrameKind.ENDED)]
    assert control.dropped() == [job.id] * started
    assert [e.end for e in await log_entries(queue, job.id, 0)] == [""] * started + ["expired"]
    assert await queue.expire(0, 100) == (0, {})


async def test_a_job_whose_time_is_not_over_stays(queue: Store) -> None:
    job = await submit(queue, deadline_s=600)
    assert await queue.expire(0, 100) == (0, {})
    assert await state_of(queue, job.id) == ("queued", "")


async def test_no_more_expire_in_one_call_than_asked_for(queue: Store) -> None:
    for _ in range(5):
        await submit(queue, deadline_s=1e-6)
    assert [(await queue.expire(0, 2))[0] for _ in range(4)] == [2, 2, 1, 0]


async def test_the_watcher_of_a_queued_job_receives_all_frames(
    queue: Store, gateway: ChannelSubscriber
) -> None:
    job = await submit(queue, gateway="")
    await queue.watch(job.id, GATEWAY, follow=False)
    leased = await claim_one(queue)
    first = output(leased, 1)
    await emit(queue, [first], log_flushes=[log_flush(first, 1)])
    await finish(queue, leased, 2, answer())
    assert [f[1:3] for f in gateway.frames()] == [(1, FrameKind.CHUNK), (2, FrameKind.DONE)]


async def test_the_watcher_of_a_running_job_receives_the_later_frames(
    queue: Store, gateway: ChannelSubscriber
) -> None:
    leased = await lease(queue, gateway="")
    await emit_token(queue, leased, 1)
    await queue.watch(leased.id, GATEWAY, follow=True)
    await emit_token(queue, leased, 2)
    assert [f[1] for f in gateway.frames()] == [2]


async def watchers_of(queue: Store, job: LeasedJob) -> tuple[str, bool]:
    """The job's watchers, as its worker gets them with a renewal."""
    renewal = await queue.renew(0, WORKER, "", LEASE_S, [job])
    return renewal.watchers[job.id]


async def test_watching_does_not_take_the_lease_from_its_worker(queue: Store) -> None:
    leased = await lease(queue, gateway="")
    for gateway in ("a", "b", "a"):
        await queue.watch(leased.id, gateway, follow=False)
    assert await watchers_of(queue, leased) == ("a b", False)
    first = output(leased, 1)
    assert await emit(queue, [first], log_flushes=[log_flush(first, 1)]) == {}
    await queue.watch(leased.id, "b", follow=True)
    await queue.watch(leased.id, "c", follow=False)
    assert await watchers_of(queue, leased) == ("a b c", True)
    assert await finish(queue, leased, 2, answer()) == "ok"


async def test_a_gateway_whose_name_begins_like_anothers_is_not_taken_for_it(
    queue: Store,
) -> None:
    leased = await lease(queue, gateway="gw-12")
    await queue.watch(leased.id, "gw-1", follow=False)
    assert await watchers_of(queue, leased) == ("gw-12 gw-1", False)


async def test_only_the_worker_that_holds_the_job_is_notified(
    queue: Store, control: ChannelSubscriber
) -> None:
    leased = await lease(queue)
    await queue.release([leased], "drained", blame=False)
    await claim_one(queue, worker="w-other")
    await queue.cancel(leased.id, TENANT)
    assert control.messages() == []
