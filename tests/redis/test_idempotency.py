"""Idempotency keys in Redis: how long they stay, and what is no key; the rest is in tests/store."""

from __future__ import annotations

from typing import Any

from redis import Redis

from shared.job.idempotency import IDEMPOTENCY_TTL_S, IdempotencyKey
from shared.job.job import NewJob
from shared.job.replies import JoinedJob, SubmitReply
from shared.store.redis.job_queue import JobQueue
from tests.redis.conftest import TENANT, claim, make_job

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
