"""Redis is full: new jobs are refused, running jobs go on and end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from shared.store.interface import StoreUnwritable
from shared.store.redis.job_queue import JobQueue
from tests.redis.conftest import (
    TENANT,
    WORKER,
    answer,
    claim,
    claim_one,
    emit,
    expire_lease,
    finish,
    log_entries,
    log_flush,
    make_job,
    output,
    renew,
    submit,
    submit_one,
)


@pytest.fixture
def full(store: Redis) -> Iterator[Redis]:
    """Sets the limit when asked to, and lifts it in the end."""
    yield store
    store.config_set("maxmemory", 0)


async def test_a_full_redis_takes_no_new_job(queue: JobQueue, full: Redis) -> None:
    await submit(queue)
    full.config_set("maxmemory", 1)
    refused = make_job()
    with pytest.raises(StoreUnwritable):
        await submit_one(queue, refused, 10)
    full.config_set("maxmemory", 0)
    assert await queue.get(refused.id) is None
    assert await submit_one(queue, refused, 10) == 2


async def test_running_jobs_go_on_and_end(queue: JobQueue, full: Redis) -> None:
    jobs = [await submit(queue) for _ in range(5)]
    first = (await claim(queue, 1))[0]
    full.config_set("maxmemory", 1)
    done, cancelled, silent, released = [first, *await claim(queue, 3)]
    assert await renew(queue, WORKER, [done]) == {}
    await queue.watch(done.id, "gw-2", follow=True)
    first_step = output(done, 1, "x" * 10_000)
    assert await emit(queue, [first_step]) == {}
    assert [entry.seq for entry in await log_entries(queue, done.id, 0)] == [1]
    assert await emit(queue, [], log_flushes=[log_flush(first_step, 1)]) == {}
    last = output(done, 2, "x" * 10_000, answer=answer(body=b"y" * 10_000))
    assert await emit(queue, [last]) == {}
    assert [e.end for e in await log_entries(queue, done.id, 0)] == ["", "", "completed"]
    assert await queue.cancel(cancelled.id, TENANT) == "cancelled"
    expire_lease(full, silent)
    assert await queue.reap(0, 5.0) == {silent.id: "queued"}
    assert await queue.release([released], "drained", blame=False) == {released.id: "queued"}
    assert {job.id for job in await claim(queue)} == {silent.id, released.id, jobs[4].id}


async def test_deadlines_and_leases_still_expire(queue: JobQueue, full: Redis) -> None:
    late = await submit(queue, deadline_s=1e-6)
    full.config_set("maxmemory", 1)
    assert await queue.expire(0, 10) == (1, {late.id: "expired"})


async def test_scripts_can_be_loaded_into_a_full_redis(queue: JobQueue, full: Redis) -> None:
    await submit(queue)
    leased = await claim_one(queue)
    full.config_set("maxmemory", 1)
    full.function_flush()
    full.script_flush()
    assert await finish(queue, leased, 1, answer()) == "ok"
