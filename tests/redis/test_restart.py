"""Redis is killed and comes back: jobs and leases are there, scripts are loaded again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import pytest

from shared.store.interface import StoreError, StoreUnavailable
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.scripts.emit import make_step
from shared.store.servers import connect
from tests.harness.servers import RedisServer
from tests.harness.waiting import eventually
from tests.redis.conftest import (
    TENANT,
    WORKER,
    answer,
    claim,
    claim_one,
    emit,
    emit_token,
    finish,
    lease,
    log_entries,
    log_flush,
    next_fence_token,
    open_queue,
    output,
    pending,
    renew,
    submit,
)


@pytest.fixture
async def queue(own_redis: RedisServer) -> AsyncIterator[JobQueue]:
    async with open_queue(own_redis.url) as queue:
        yield queue


T = TypeVar("T")


def kill(server: RedisServer) -> None:
    """SIGKILL, once the last second's writes are on disk."""
    with server.client() as client:
        client.config_set("appendfsync", "always")
        client.set("flushed", 1)
    server.stop(kill=True)


def forget_scripts(server: RedisServer) -> None:
    with server.client() as client:
        client.script_flush()
        client.function_flush()


async def test_no_call_meets_a_connection_that_the_restart_has_closed(
    own_redis: RedisServer,
) -> None:
    redis = connect(own_redis.url)
    at_once = 3
    await asyncio.gather(*(redis.blpop("nothing", timeout=0.2) for _ in range(at_once)))
    await asyncio.to_thread(own_redis.stop)
    await asyncio.to_thread(own_redis.start)
    for _ in range(at_once):
        assert await asyncio.gather(*(redis.set("x", 1) for _ in range(at_once)))
    await redis.aclose()


async def test_a_lease_survives_and_its_holder_goes_on(
    queue: JobQueue, own_redis: RedisServer
) -> None:
    job = await lease(queue)
    await emit_token(queue, job, 1)
    kill(own_redis)
    own_redis.start()
    assert await go_on(renew, queue, WORKER, [job]) == {}
    assert await emit_token(queue, job, 2) == {}
    assert [e.seq for e in await log_entries(queue, job.id, 0)] == [1, 2]
    last = [log_flush(output(job, seq), seq) for seq in (1, 2)]
    assert await emit(queue, [], log_flushes=last) == {}
    assert await finish(queue, job, 3, answer()) == "ok"
    assert [e.seq for e in await log_entries(queue, job.id, 0)] == [1, 2, 3]


async def test_a_worker_goes_on_in_its_fence_token(queue: JobQueue, own_redis: RedisServer) -> None:
    job = await lease(queue)
    fence_token = await next_fence_token(queue)
    assert await renew(queue, WORKER, [job]) == {}
    kill(own_redis)
    own_redis.start()
    step = make_step([output(job, 1)])
    with pytest.raises(StoreUnavailable):  # another Redis may not have the job
        await queue.emit(0, WORKER, fence_token, step)
    assert await go_on(renew, queue, WORKER, [job]) == {}
    assert await queue.emit(0, WORKER, fence_token, step) == {}
    assert [e.seq for e in await log_entries(queue, job.id, 0)] == [1]


async def test_the_last_output_survives_and_is_kept_when_its_worker_is_lost(
    queue: JobQueue, own_redis: RedisServer
) -> None:
    await submit(queue)
    job = await claim_one(queue, lease_s=0.2)
    step = [output(job, 1)]
    assert await emit(queue, step) == {}
    assert await emit(queue, [output(job, 2)], log_flushes=[log_flush(step[0], 1)]) == {}
    kill(own_redis)
    own_redis.start()

    async def taken() -> dict[str, str]:
        return await go_on(queue.reap, 0, 0.2)

    assert await eventually(taken, "the job is taken back") == {job.id: "queued"}
    entries = await log_entries(queue, job.id, 0)
    assert [(e.seq, e.end, e.lost) for e in entries] == [(1, "", False), (2, "", False)]


async def test_queued_and_ended_jobs_survive(queue: JobQueue, own_redis: RedisServer) -> None:
    ended = await lease(queue)
    await finish(queue, ended, 1, answer(body=b"result"))
    waiting = [await submit(queue, deadline_s=600) for _ in range(3)]
    kill(own_redis)
    own_redis.start()
    job = await go_on(queue.get, ended.id)
    assert job is not None
    assert (job.state, job.result) == ("completed", b"result")
    with own_redis.client() as client:
        assert client.pttl(keys.job(0, ended.id)) > 0
    assert [each.id for each in await claim(queue)] == [each.id for each in waiting]


async def test_a_worker_that_died_with_it_loses_its_job_to_another(
    queue: JobQueue, own_redis: RedisServer
) -> None:
    await submit(queue)
    old = await claim_one(queue, lease_s=0.2)
    kill(own_redis)
    own_redis.start()

    async def taken() -> dict[str, str]:
        return await go_on(queue.reap, 0, 0.2)

    assert await eventually(taken, "the job is taken back") == {old.id: "queued"}
    assert await emit_token(queue, old, 1) == {old.id: "queued"}
    new = await claim_one(queue, worker="w-2")
    assert await finish(queue, new, 1, answer()) == "ok"
    with own_redis.client() as client:
        assert pending(client) == 0


async def test_scripts_that_redis_has_forgotten_are_loaded_again(
    queue: JobQueue, own_redis: RedisServer
) -> None:
    job = await lease(queue)
    forget_scripts(own_redis)
    assert await emit_token(queue, job, 1) == {}
    assert await queue.cancel(job.id, TENANT) == "cancelled"


async def test_a_redis_that_lost_its_data_is_detected(
    queue: JobQueue, own_redis: RedisServer
) -> None:
    job = await lease(queue)
    with own_redis.client() as client:
        client.flushall()
    forget_scripts(own_redis)
    assert await emit_token(queue, job, 1) == {job.id: "gone"}
    assert await renew(queue, WORKER, [job]) == {job.id: "gone"}
    assert await finish(queue, job, 1, answer()) == "gone"
    assert await claim(queue) == []


async def test_calls_fail_soon_while_redis_is_away(queue: JobQueue, own_redis: RedisServer) -> None:
    await submit(queue)
    own_redis.stop(kill=True)
    with pytest.raises(StoreError):
        await claim(queue)


async def go_on(call: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Repeat a call until it does not meet a connection that the restart has broken."""

    async def answered() -> tuple[T] | None:
        try:
            return (await call(*args),)
        except StoreError:
            return None

    got = await eventually(answered, "Redis answers again")
    assert got is not None
    return got[0]
