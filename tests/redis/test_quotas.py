"""Quotas: jobs and bytes that are kept of one tenant, counted in Redis.

Those of conversations: responses/test_conversation_quotas.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis import Redis

from shared.job.errors import QuotaExceeded, TooManyWaiting
from shared.job.job import LeasedJob
from shared.job.quotas import Quotas
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from tests.redis.conftest import (
    TENANT,
    answer,
    claim,
    claim_one,
    emit,
    finish,
    log_flush,
    make_job,
    open_queue,
    output,
    submit,
)

KEPT = keys.kept(0, TENANT)
EXPIRING = keys.base(0) + keys.EXPIRING
LARGE = b"x" * 10_000


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[JobQueue]:
    """A queue whose tenants have small quotas."""
    async with open_queue(redis_url) as queue:
        queue.quotas = Quotas(jobs=10, conversations=3, kept_bytes=50_000)
        yield queue


def kept_bytes(store: Redis) -> int:
    """What is counted; the sum must be that of the things."""
    counted = dict(store.zrange(KEPT, 0, -1, withscores=True))
    total = int(counted.pop(keys.KEPT_TOTAL.encode(), 0))
    assert total == sum(counted.values())
    return total


async def sweep(queue: JobQueue, store: Redis) -> None:
    """As if all that expires had expired."""
    for member in store.zrange(EXPIRING, 0, -1):
        thing = member.split()[0].decode()
        word = keys.CONVERSATION if thing.startswith("conv_") else keys.JOB
        store.delete(f"{keys.base(0)}{word}:{thing}")
        store.zadd(EXPIRING, {member: 1})
    await queue.sweep(0)


async def test_the_number_of_jobs_is_limited(queue: JobQueue, store: Redis) -> None:
    jobs = [make_job() for _ in range(12)]
    replies = await queue.submit_all(0, jobs, 1000)
    assert [isinstance(reply, QuotaExceeded) for reply in replies] == [False] * 10 + [True] * 2
    assert "10 are kept" in str(replies[10])
    with pytest.raises(QuotaExceeded):
        await submit(queue)
    await submit(queue, tenant="other")
    # A repeated call is no further job.
    assert not isinstance((await queue.submit_all(0, jobs[:1], 1000))[0], Exception)
    for job in await claim(queue):
        await finish(queue, job, 1, answer())
    with pytest.raises(QuotaExceeded):
        await submit(queue)
    await sweep(queue, store)
    await submit(queue)


async def test_bytes_of_requests_are_limited_and_given_back(queue: JobQueue, store: Redis) -> None:
    jobs = [await submit(queue, body=LARGE) for _ in range(5)]
    assert kept_bytes(store) == 50_000
    with pytest.raises(QuotaExceeded, match="bytes"):
        await submit(queue, body=LARGE)
    await submit(queue)  # a short one counts by its number only
    for job in jobs:
        await queue.cancel(job.id, TENANT)
    await queue.delete(jobs[0].id)
    assert kept_bytes(store) == 40_000
    assert store.zscore(keys.jobs(0, TENANT), jobs[0].id) is None
    await submit(queue, body=LARGE)
    await sweep(queue, store)
    assert kept_bytes(store) == 10_000


async def test_a_short_job_writes_nothing_to_be_counted(queue: JobQueue, store: Redis) -> None:
    before = store.info("commandstats")
    await submit(queue)
    after = store.info("commandstats")

    def more(command: str) -> int:
        return sum(
            sign * stats.get(f"cmdstat_{command}", {"calls": 0})["calls"]
            for sign, stats in ((1, after), (-1, before))
        )

    assert (more("zscore"), more("zcard")) == (1, 1)
    assert more("zincrby") == 0
    assert not store.exists(KEPT)


async def test_large_answers_are_counted(queue: JobQueue, store: Redis) -> None:
    await submit(queue, stream=False)
    await finish(queue, await claim_one(queue), 1, answer(body=LARGE))
    assert kept_bytes(store) == len(LARGE)
    await submit(queue)
    job = await claim_one(queue)
    for seq in range(1, 12):
        await emit_segment(queue, job, seq)
    await finish(queue, job, 12, answer())
    assert kept_bytes(store) > len(LARGE) + 11 * 500
    await sweep(queue, store)
    assert kept_bytes(store) == 0


async def emit_segment(queue: JobQueue, job: LeasedJob, seq: int) -> None:
    """An entry in a segment of its own."""
    made = output(job, seq, "t" * 500)
    await emit(queue, [made], log_flushes=[log_flush(made, seq)])


async def test_the_number_of_a_tenants_waiting_jobs_is_limited(
    queue: JobQueue, store: Redis
) -> None:
    queue.quotas = Quotas(waiting=3)
    jobs = [make_job() for _ in range(5)]
    replies = await queue.submit_all(0, jobs, 1000)
    assert [type(reply) for reply in replies] == [int] * 3 + [TooManyWaiting] * 2
    assert "3 of your jobs wait for" in str(replies[3])
    with pytest.raises(TooManyWaiting):
        await submit(queue)
    await submit(queue, tenant="other")
    await submit(queue, lane="flex")  # each lane has a bound of its own
    assert not isinstance((await queue.submit_all(0, jobs[:1], 1000))[0], Exception)
    await claim(queue, 2)
    running = await queue.submit_all(0, [make_job() for _ in range(3)], 1000)
    assert [isinstance(reply, TooManyWaiting) for reply in running].count(True) >= 1
    for job in jobs:
        await queue.cancel(job.id, TENANT)
    assert store.exists(keys.waiting_of(0, jobs[0].pool, "default", TENANT)) <= 1
