"""A worker's lease on a real queue: fencing tokens, subscribers, and which jobs are lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis import Redis

from shared.job.job import LeasedJob
from shared.job.replies import Fenced, Renewal
from shared.job.step_log import JobStream
from shared.store.interface import StoreUnavailable
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.scripts.emit import make_step
from tests.harness.waiting import eventually
from tests.redis.conftest import (
    LEASE_S,
    POOL,
    TENANT,
    WORKER,
    claim,
    claim_one,
    expire_lease,
    open_queue,
    output,
    submit,
)
from worker.core.lease import Lease
from worker.core.membership import Membership


class Worker:
    """The jobs that a worker holds, and their lease."""

    def __init__(self, queue: JobQueue) -> None:
        self.held: list[JobStream] = []
        self.lost: dict[str, str] = {}
        self.lease = Lease(
            Membership(queue, POOL, WORKER, LEASE_S), lambda: self.held, self._on_lost
        )

    def _on_lost(self, job: LeasedJob, state: str) -> None:
        self.lost[job.id] = state

    def hold(self, job: LeasedJob) -> JobStream:
        self.held.append(JobStream(job))
        return self.held[-1]


@pytest.fixture
def worker(queue: JobQueue) -> Worker:
    return Worker(queue)


async def test_a_renewal_gives_all_jobs_the_token_and_their_subscribers(
    queue: JobQueue, worker: Worker
) -> None:
    for _ in range(2):
        await submit(queue)
    a, b = [worker.hold(job) for job in await claim(queue)]
    await queue.watch(a.job.id, "gw-2", follow=True)
    await worker.lease.renew(0)
    assert a.fence_token == b.fence_token == worker.lease.fence_token(0) != ""
    assert (a.watchers, b.watchers) == ("gw-1 gw-2", "gw-1")
    assert worker.lost == {}


async def test_a_renewal_keeps_silent_jobs_from_being_reaped(
    queue: JobQueue, store: Redis, worker: Worker
) -> None:
    await submit(queue)
    stream = worker.hold(await claim_one(queue))
    expire_lease(store, stream.job)
    await worker.lease.renew(0)
    assert await queue.reap(0, 1.0) == {}


async def test_without_jobs_the_token_is_fetched_and_kept(worker: Worker) -> None:
    """So that jobs to come are leased under it, and may be written at once."""
    await worker.lease.renew(0)
    token = worker.lease.fence_token(0)
    assert token != ""
    await worker.lease.renew(0)
    assert worker.lease.fence_tokens == [token]


async def test_a_renewal_reports_jobs_that_were_ended_or_taken_back(
    queue: JobQueue, worker: Worker
) -> None:
    for _ in range(3):
        await submit(queue)
    kept, cancelled, released = [worker.hold(job) for job in await claim(queue)]
    await queue.cancel(cancelled.job.id, TENANT)
    await queue.release([released.job], "drained", blame=False)
    await worker.lease.renew(0)
    assert worker.lost == {cancelled.job.id: "cancelled", released.job.id: "queued"}
    assert (kept.watchers, cancelled.watchers, released.watchers) == ("gw-1", "", "")


async def test_a_job_that_arrives_during_a_renewal_does_not_get_its_token(
    queue: JobQueue, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis may have replied before it leased the job, so the reply does not cover it."""
    renew = queue.renew

    async def job_arrives_meanwhile(*args: Any) -> Renewal:
        renewal = await renew(*args)
        await submit(queue)
        worker.hold((await claim_one(queue))._replace(fence_token="older"))
        return renewal

    monkeypatch.setattr(queue, "renew", job_arrives_meanwhile)
    await worker.lease.renew(0)
    assert worker.held[0].fence_token == "older"


async def test_concurrent_renewals_leave_the_token_that_redis_accepts(
    queue: JobQueue, worker: Worker
) -> None:
    await submit(queue)
    stream = worker.hold(await claim_one(queue))
    await asyncio.gather(*(worker.lease.renew(0) for _ in range(5)))
    token = worker.lease.fence_token(0)
    assert stream.fence_token == token
    assert await queue.emit(0, WORKER, token, make_step([output(stream.job, 1)])) == {}


async def test_an_invalidated_token_is_replaced_by_the_next_renewal(
    queue: JobQueue, worker: Worker
) -> None:
    await submit(queue)
    stream = worker.hold(await claim_one(queue))
    await worker.lease.renew(0)
    old = worker.lease.fence_token(0)
    worker.lease.invalidate(0, "an older one")
    assert worker.lease.fence_token(0) == old
    await queue.watch(stream.job.id, "gw-2", follow=True)
    with pytest.raises(Fenced):
        await queue.emit(0, WORKER, old, make_step([output(stream.job, 1)]))
    worker.lease.invalidate(0, old)
    assert worker.lease.fence_token(0) == ""
    await worker.lease.renew(0)
    assert worker.lease.fence_token(0) not in {"", old}


async def test_a_renewal_that_fails_changes_nothing(
    queue: JobQueue, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await worker.lease.renew(0)
    token = worker.lease.fence_token(0)

    async def fail(*_: Any) -> Renewal:
        raise StoreUnavailable("refused")

    with monkeypatch.context() as patch:
        patch.setattr(queue, "renew", fail)
        with pytest.raises(StoreUnavailable):
            await worker.lease.renew(0)
    assert worker.lease.fence_token(0) == token
    async with asyncio.timeout(30):
        await worker.lease.renew(0)  # does not wait for the one that has failed
    assert worker.lease.fence_token(0) == token


async def test_after_a_lost_connection_no_shard_has_a_token_until_it_is_renewed(
    redis_url: str, store: Redis
) -> None:
    """Another Redis may reply afterwards, which has fewer of the leases."""
    async with open_queue(redis_url, shards=2) as queue:
        worker = Worker(queue)
        for shard in range(2):
            await worker.lease.renew(shard)
        assert all(worker.lease.fence_tokens)
        store.client_kill_filter(_type="normal", skipme=True)

        async def noticed() -> bool:
            return worker.lease.fence_tokens == ["", ""]

        await eventually(noticed, "the lost connection is noticed")
        await worker.lease.renew(1)
        assert [bool(token) for token in worker.lease.fence_tokens] == [False, True]


async def test_a_token_that_arrives_over_a_connection_lost_meanwhile_is_void(
    queue: JobQueue, store: Redis, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew, losses = queue.renew, queue.losses

    async def lose_the_connection_after(*args: Any) -> Renewal:
        renewal, before = await renew(*args), losses(0)
        store.client_kill_filter(_type="normal", skipme=True)

        async def lost() -> bool:
            return losses(0) > before

        await eventually(lost, "the connection is lost")
        return renewal

    monkeypatch.setattr(queue, "renew", lose_the_connection_after)
    await worker.lease.renew(0)
    assert worker.lease.fence_token(0) == ""
