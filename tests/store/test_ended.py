"""Every end of a job is one entry, whatever ends it, and each reader uses it once."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import pytest
from redis import Redis

from gateway.maintenance.usage_counter import UsageCounter
from shared.job.states import JobEvent
from shared.store import keys
from shared.store.deliveries import Deliveries
from shared.store.ended import Ended, EndedStreams, Owner, Reader
from shared.store.queue import Queue
from shared.store.usage import UsageRecords
from shared.webhooks.webhook_delivery import notify_of
from tests.store.conftest import (
    TENANT,
    claim,
    claim_one,
    finish,
    lease,
    lose_worker,
    make_answer,
    pass_deadline,
    submit,
)

KEPT_DAYS = 400


async def ended(queue: Queue) -> list[Ended]:
    """All that has ended in the first shard."""
    return await EndedStreams(queue, Reader.WEBHOOKS).read(0, "", 1000)


async def completes(queue: Queue, server: Redis) -> str:
    leased = await lease(queue)
    await finish(queue, leased, make_answer())
    return leased.id


async def fails(queue: Queue, server: Redis) -> str:
    leased = await lease(queue)
    await finish(queue, leased, make_answer(event=JobEvent.FAIL, error_code="x"))
    return leased.id


async def lacks_log_entries(queue: Queue, server: Redis) -> str:
    leased = await lease(queue)
    server.delete(keys.log(0, leased.id))
    await finish(queue, leased, make_answer())
    return leased.id


async def is_cancelled_as_it_waits(queue: Queue, server: Redis) -> str:
    job = await submit(queue)
    await queue.cancel(TENANT, job.id)
    return job.id


async def is_cancelled_as_it_runs(queue: Queue, server: Redis) -> str:
    leased = await lease(queue)
    await queue.cancel(TENANT, leased.id)
    await queue.cancel(TENANT, leased.id)
    return leased.id


async def has_no_watcher(queue: Queue, server: Redis) -> str:
    job = await submit(queue, keep_s=0.0, gateway="gw-1")
    await queue.unwatch(job.id, "gw-1")
    return job.id


async def has_a_deadline(queue: Queue, server: Redis) -> str:
    job = await submit(queue, deadline_s=600)
    await pass_deadline(queue, server, job.id)
    return job.id


async def is_too_late_to_start(queue: Queue, server: Redis) -> str:
    job = await submit(queue, queue_deadline_s=600)
    server.hset(keys.job(0, job.id), "deadline_us", 1)
    assert not await claim(queue)
    return job.id


async def is_out_of_attempts(queue: Queue, server: Redis) -> str:
    leased = await lease(queue, max_attempts=1)
    await lose_worker(queue, server)
    return leased.id


async def has_a_damaged_record(queue: Queue, server: Redis) -> str:
    job = await submit(queue)
    server.hset(keys.job(0, job.id), "created_us", "never")
    await queue.cancel(TENANT, job.id)
    return job.id


WAYS: dict[Callable[[Queue, Redis], Awaitable[str]], str] = {
    completes: "completed",
    fails: "failed",
    lacks_log_entries: "failed",
    is_cancelled_as_it_waits: "cancelled",
    is_cancelled_as_it_runs: "cancelled",
    has_no_watcher: "cancelled",
    has_a_deadline: "expired",
    is_too_late_to_start: "expired",
    is_out_of_attempts: "failed",
    has_a_damaged_record: "failed",
}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_an_end_is_one_entry(
    queue: Queue, server: Redis, way: Callable[[Queue, Redis], Awaitable[str]]
) -> None:
    job_id = await way(queue, server)
    (entry,) = await ended(queue)
    assert entry[1:5] == (job_id, Owner(TENANT, "", "m"), WAYS[way], "")
    assert abs(entry.at_ms / 1e3 - time.time()) < 60


async def test_a_job_that_is_requeued_has_not_ended(queue: Queue, server: Redis) -> None:
    await lease(queue, notify=notify_of("job", ["we_1"]))
    await lose_worker(queue, server)
    assert await ended(queue) == []
    await finish(queue, await claim_one(queue), make_answer())
    (entry,) = await ended(queue)
    assert entry.notify == "job we_1"


async def test_an_entry_is_deleted_once_both_readers_have_used_it(
    queue: Queue, server: Redis
) -> None:
    for _ in range(3):
        await is_cancelled_as_it_waits(queue, server)
    first, second, third = await ended(queue)
    deliveries, streams = Deliveries(queue), EndedStreams(queue, Reader.WEBHOOKS)
    assert await deliveries.add(0, "", first.entry, []) == 0
    assert await deliveries.add(0, "", second.entry, []) is None  # another process was faster
    assert (await deliveries.backlog()).ended == 3
    assert await streams.read(0, first.entry, 1) == [second]
    await UsageCounter(queue, KEPT_DAYS).run()
    assert await ended(queue) == [second, third]
    assert (await UsageRecords(queue).backlog())[:2] == (0, 0.0)
    assert await deliveries.add(0, first.entry, third.entry, []) == 0
    await UsageCounter(queue, KEPT_DAYS).run()
    assert await ended(queue) == []
    assert (await deliveries.backlog())[:2] == (0, 0.0)


async def test_what_nobody_reads_is_bounded(queue: Queue, server: Redis) -> None:
    for _ in range(350):
        server.xadd(keys.ended(0), {"e": b"x"})
    await queue.sweep(0, 100, most_ended=200)
    backlog = await UsageRecords(queue).backlog()
    assert 200 <= backlog.entries < 350
    assert backlog.entries + backlog.dropped == 350
