"""Calls with the same idempotency key make one job."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis import Redis

from shared.job.errors import IdempotencyKeyReused, QueueFull
from shared.job.idempotency import IDEMPOTENCY_TTL_S, IdempotencyKey
from shared.job.job import NewJob, new_job_id_in, shard_of
from shared.job.replies import JoinedJob, SubmitReply
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from tests.redis.conftest import GATEWAY, TENANT, answer, claim, finish, lease, make_job, submit

BODY = b'{"model": "m"}'


def keyed(key: str = "k-1", body: bytes = BODY, path: str = "/v1/x", **changes: Any) -> NewJob:
    tenant = changes.get("tenant", TENANT)
    return make_job(body=body, idempotency=IdempotencyKey.of(tenant, path, key, body), **changes)


async def submit_one(queue: JobQueue, job: NewJob, max_depth: int = 1000) -> SubmitReply:
    (reply,) = await queue.submit_all(job.shard, [job], max_depth)
    return reply


async def test_the_second_call_joins_the_job_of_the_first(queue: JobQueue, store: Redis) -> None:
    first = keyed()
    assert await submit_one(queue, first) == 1
    assert await submit_one(queue, keyed()) == JoinedJob(first.id)
    assert len(await claim(queue)) == 1
    assert await submit_one(queue, keyed()) == JoinedJob(first.id)
    (key,) = store.keys("*idempotency*")
    assert IDEMPOTENCY_TTL_S - 60 < store.ttl(key) <= IDEMPOTENCY_TTL_S


async def test_a_repeated_submit_is_no_second_call(queue: JobQueue) -> None:
    job = keyed()
    assert await submit_one(queue, job) == 1
    assert await submit_one(queue, job) == 1
    assert len(await claim(queue)) == 1


async def test_first_calls_at_once_make_one_job(queue: JobQueue) -> None:
    jobs = [keyed() for _ in range(10)]
    replies = await queue.submit_all(0, jobs[:5], 1000)
    replies += await asyncio.gather(*(submit_one(queue, job) for job in jobs[5:]))
    assert replies == [1] + [JoinedJob(jobs[0].id)] * 9
    assert len(await claim(queue)) == 1


async def test_another_body_is_refused(queue: JobQueue) -> None:
    first = keyed()
    await submit_one(queue, first)
    refused = await submit_one(queue, keyed(body=b'{"model": "other"}'))
    assert isinstance(refused, IdempotencyKeyReused)
    assert first.id in str(refused)


async def test_a_key_is_of_one_tenant_and_path(queue: JobQueue) -> None:
    for job in (keyed(), keyed(tenant="b"), keyed(path="/v1/y"), keyed("k-2")):
        assert isinstance(await submit_one(queue, job), int)
    assert len(await claim(queue)) == 4


async def test_a_job_that_was_refused_takes_no_key(queue: JobQueue, store: Redis) -> None:
    await submit(queue)
    assert isinstance(await submit_one(queue, keyed(), 1), QueueFull)
    assert not store.keys("*idempotency*")


async def test_an_ended_job_is_joined(queue: JobQueue) -> None:
    leased = await lease(queue, **keyed()._asdict())
    await finish(queue, leased, 1, answer())
    assert await submit_one(queue, keyed()) == JoinedJob(leased.id)
    cancelled = keyed("k-2")
    await submit_one(queue, cancelled)
    await queue.cancel(cancelled.id, TENANT)
    assert await submit_one(queue, keyed("k-2")) == JoinedJob(cancelled.id)


async def test_the_key_of_a_job_that_nobody_followed_or_that_is_gone_is_free(
    queue: JobQueue, store: Redis
) -> None:
    first = keyed(keep_s=0.0)
    await submit_one(queue, first)
    await queue.unwatch(first.id, GATEWAY)
    second = keyed()
    assert await submit_one(queue, second) == 1
    assert await submit_one(queue, keyed()) == JoinedJob(second.id)
    store.delete(keys.job(0, second.id))
    assert isinstance(await submit_one(queue, keyed()), int)


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x92\xc0\xc0"])
async def test_a_key_that_cant_be_read_is_free(queue: JobQueue, store: Redis, value: bytes) -> None:
    name = IdempotencyKey.of(TENANT, "/v1/x", "k-1", BODY).name
    store.set(f"{keys.base(0)}{keys.IDEMPOTENCY}:{name}", value)
    first = keyed()
    assert await submit_one(queue, first) == 1
    assert await submit_one(queue, keyed()) == JoinedJob(first.id)


def test_all_gateways_look_for_a_key_in_the_same_shard() -> None:
    key = IdempotencyKey.of("t", "/p", "k", b"x")
    assert key.shard(7) == IdempotencyKey.of("t", "/p", "k", b"y").shard(7)
    assert len({IdempotencyKey.of("t", "/p", f"{n}", b"").shard(8) for n in range(200)}) == 8
    assert shard_of(new_job_id_in(5)) == 5


def test_a_key_for_retries_does_not_keep_its_job_longer() -> None:
    stored = IdempotencyKey.of("t", "/p", "k", b"")
    assert (stored.ttl_s, stored.job_ttl_s) == (86_400, 86_400)
    for_retries = IdempotencyKey.of("t", "/p", "flotilla-retry-1", b"")
    assert (for_retries.ttl_s, for_retries.job_ttl_s) == (3600, 0)
