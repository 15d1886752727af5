"""Every way in which a job ends is told to the outbox, once, if anybody wants to know it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import pytest
from redis import Redis

from shared.job.states import JobEvent
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.outbox import LOCK_S, Outbox, outbox_key, parse_ended
from shared.webhooks.webhook_delivery import Ended, notify_of
from tests.redis.conftest import (
    TENANT,
    answer,
    claim,
    claim_one,
    expire_lease,
    finish,
    lease,
    pass_deadline,
    submit,
)

TENANTS = keys.base(0) + keys.WEBHOOK_TENANTS


def ended(store: Redis) -> list[Ended]:
    return list(map(parse_ended, store.lrange(outbox_key(0), 0, -1)))  # type: ignore[arg-type]


async def completes(queue: JobQueue, store: Redis, notify: str) -> str:
    leased = await lease(queue, notify=notify)
    await finish(queue, leased, 1, answer())
    return leased.id


async def fails(queue: JobQueue, store: Redis, notify: str) -> str:
    leased = await lease(queue, notify=notify)
    await finish(queue, leased, 1, answer(event=JobEvent.FAIL, error_code="x"))
    return leased.id


async def lacks_log_entries(queue: JobQueue, store: Redis, notify: str) -> str:
    leased = await lease(queue, notify=notify)
    await finish(queue, leased, 5, answer())
    return leased.id


async def is_cancelled_as_it_waits(queue: JobQueue, store: Redis, notify: str) -> str:
    job = await submit(queue, notify=notify)
    await queue.cancel(job.id, TENANT)
    return job.id


async def is_cancelled_as_it_runs(queue: JobQueue, store: Redis, notify: str) -> str:
    leased = await lease(queue, notify=notify)
    await queue.cancel(leased.id, TENANT)
    await queue.cancel(leased.id, TENANT)
    return leased.id


async def has_no_watcher(queue: JobQueue, store: Redis, notify: str) -> str:
    job = await submit(queue, notify=notify, keep_s=0.0, gateway="gw-1")
    await queue.unwatch(job.id, "gw-1")
    return job.id


async def has_a_deadline(queue: JobQueue, store: Redis, notify: str) -> str:
    job = await submit(queue, notify=notify, deadline_s=600)
    pass_deadline(store, job.id)
    await queue.expire(0)
    return job.id


async def is_too_late_to_start(queue: JobQueue, store: Redis, notify: str) -> str:
    job = await submit(queue, notify=notify, queue_deadline_s=600)
    store.hset(keys.job(0, job.id), "deadline_us", 1)
    assert not await claim(queue)
    return job.id


async def is_out_of_attempts(queue: JobQueue, store: Redis, notify: str) -> str:
    leased = await lease(queue, notify=notify, max_attempts=1)
    expire_lease(store, leased)
    await queue.reap(0, 0.001)
    return leased.id


async def has_a_damaged_record(queue: JobQueue, store: Redis, notify: str) -> str:
    job = await submit(queue, notify=notify)
    store.hset(keys.job(0, job.id), "created_us", "never")
    await queue.cancel(job.id, TENANT)
    return job.id


WAYS: dict[Callable[[JobQueue, Redis, str], Awaitable[str]], str] = {
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
async def test_an_end_is_told_once(
    queue: JobQueue, store: Redis, way: Callable[[JobQueue, Redis, str], Awaitable[str]]
) -> None:
    store.sadd(TENANTS, TENANT)
    job_id = await way(queue, store, notify_of("job"))
    (told,) = ended(store)
    assert told[1:] == (job_id, WAYS[way], told.at_us, "job", TENANT)
    assert abs(told.at_us / 1e6 - time.time()) < 60


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_an_end_that_nobody_wants_to_know_is_not_told(
    queue: JobQueue, store: Redis, way: Callable[[JobQueue, Redis, str], Awaitable[str]]
) -> None:
    store.sadd(TENANTS, TENANT, "another")
    await way(queue, store, "")
    assert ended(store) == []
    store.srem(TENANTS, TENANT)
    await way(queue, store, notify_of("job"))
    assert ended(store) == []


async def test_what_was_read_is_deleted_with_the_next_call(queue: JobQueue, store: Redis) -> None:
    for _ in range(3):
        await is_cancelled_as_it_waits(queue, store, notify_of("job", ["we_1"]))
    three, outbox = ended(store), Outbox(queue)
    some = await outbox.read(0, 2)
    assert some == three[:2]
    assert ended(store) == three
    for _ in range(2):  # the second time is a repeated call
        assert await outbox.read(0, 2, some) == three[2:]
        assert ended(store) == three[2:]
    assert await outbox.read(0, 0, three[2:]) == []
    assert not store.exists(outbox_key(0), keys.base(0) + keys.OUTBOX_READER)


async def test_one_process_reads_at_a_time_until_it_stops(queue: JobQueue, store: Redis) -> None:
    await is_cancelled_as_it_waits(queue, store, notify_of("job", ["we_1"]))
    first, second = Outbox(queue), Outbox(queue)
    of_first = await first.read(0, 2)
    assert await second.read(0, 2) == []
    assert 0 < store.pttl(keys.base(0) + keys.OUTBOX_READER) <= LOCK_S * 1000
    store.delete(keys.base(0) + keys.OUTBOX_READER)  # the first has stopped, its lock has run out
    of_second = await second.read(0, 2)
    assert of_second == of_first
    assert await first.read(0, 2, of_first) == []
    await is_cancelled_as_it_waits(queue, store, notify_of("job", ["we_1"]))
    (last,) = await second.read(0, 2, of_second)
    store.delete(keys.base(0) + keys.OUTBOX_READER)
    assert await first.read(0, 2, of_first) == [last]  # it deletes no entry of the second's


async def test_a_job_that_is_requeued_has_not_ended(queue: JobQueue, store: Redis) -> None:
    store.sadd(TENANTS, TENANT)
    leased = await lease(queue, notify="job")
    expire_lease(store, leased)
    await queue.reap(0, 0.001)
    assert ended(store) == []
    again = await claim_one(queue)
    await finish(queue, again, 1, answer())
    assert len(ended(store)) == 1
    assert (await queue.get(leased.id)).notify == "job"  # type: ignore[union-attr]
