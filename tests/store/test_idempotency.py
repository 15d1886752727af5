"""Calls with the same idempotency key make one job."""

from __future__ import annotations

import asyncio

from shared.job.errors import IdempotencyKeyReused
from shared.job.idempotency import IdempotencyKey
from shared.job.job import new_job_id_in, shard_of
from shared.job.replies import JoinedJob
from shared.store.interface import Store
from shared.store.redis.job_queue import JobQueue
from tests.redis.conftest import TENANT, ChannelSubscriber, answer, claim, finish, lease
from tests.redis.test_idempotency import keyed, submit_one


async def test_a_repeated_submit_is_no_second_call(queue: Store) -> None:
    job = keyed()
    assert await submit_one(queue, job) == 1
    assert await submit_one(queue, job) == 1
    assert len(await claim(queue)) == 1


async def test_first_calls_at_once_make_one_job(queue: Store) -> None:
    jobs = [keyed() for _ in range(10)]
    replies = await queue.submit_all(0, jobs[:5], 1000)
    replies += await asyncio.gather(*(submit_one(queue, job) for job in jobs[5:]))
    assert replies == [1] + [JoinedJob(jobs[0].id)] * 9
    assert len(await claim(queue)) == 1


async def test_first_calls_at_once_take_one_advertised_slot(
    queue: JobQueue, control: ChannelSubscriber
) -> None:
    assert await claim(queue, slots=10) == []
    jobs = [keyed() for _ in range(5)]
    other = keyed(body=b'{"model": "other"}')
    *replies, refused = await queue.submit_all(0, [*jobs, other], 1000)
    assert replies == [0] + [JoinedJob(jobs[0].id)] * 4
    assert isinstance(refused, IdempotencyKeyReused)
    assert [job.id for job in control.assigned(queue)] == [jobs[0].id]


async def test_another_body_is_refused(queue: Store) -> None:
    first = keyed()
    await submit_one(queue, first)
    refused = await submit_one(queue, keyed(body=b'{"model": "other"}'))
    assert isinstance(refused, IdempotencyKeyReused)
    assert first.id in str(refused)


async def test_a_key_is_of_one_tenant_and_path(queue: Store) -> None:
    for job in (keyed(), keyed(tenant="b"), keyed(path="/v1/y"), keyed("k-2")):
        assert isinstance(await submit_one(queue, job), int)
    assert len(await claim(queue)) == 4


async def test_an_ended_job_is_joined(queue: Store) -> None:
    leased = await lease(queue, **keyed()._asdict())
    await finish(queue, leased, 1, answer())
    assert await submit_one(queue, keyed()) == JoinedJob(leased.id)
    cancelled = keyed("k-2")
    await submit_one(queue, cancelled)
    await queue.cancel(cancelled.id, TENANT)
    assert await submit_one(queue, keyed("k-2")) == JoinedJob(cancelled.id)


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
