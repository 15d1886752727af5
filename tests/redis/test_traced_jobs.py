"""Where a job comes from, from its submission to its worker and its record."""

from __future__ import annotations

import redis as sync_redis

from shared.job.advertised_slots import UNKNOWN, SlotUpdate, advertiser
from shared.job.frames import decode_control
from shared.job.idempotency import IdempotencyKey
from shared.job.job import NO_ORIGIN, Origin
from shared.job.trace_context import new_trace
from shared.store.redis import keys
from shared.store.queue import Queue
from shared.store.redis.scripts.acquire import parse_jobs
from tests.store.conftest import (
    LEASE_S,
    POOL,
    WORKER,
    ChannelSubscriber,
    lease,
    submit,
)

TRACED = Origin(new_trace().traceparent, "req-7")


async def test_a_job_that_is_leased_as_it_is_submitted_names_it_too(
    queue: Queue, store: sync_redis.Redis
) -> None:
    subscriber = ChannelSubscriber(store, keys.control_channel(WORKER))
    slots = SlotUpdate(POOL, advertiser(WORKER, LEASE_S), 4, UNKNOWN)
    await queue.acquire(0, WORKER, 4, LEASE_S, slots)
    name = IdempotencyKey.of("tenant", "/jobs", "key", b"body")
    jobs = [
        await submit(queue, origin=origin, idempotency=key)
        for origin, key in ((TRACED, None), (TRACED, name), (NO_ORIGIN, None))
    ]
    messages = subscriber.messages()
    subscriber.close()
    leased = [job for raw in messages for job in parse_jobs(*decode_control(raw)[1])]
    assert [job.id for job in leased] == [job.id for job in jobs]
    assert [job.origin for job in leased] == [TRACED, TRACED, NO_ORIGIN]


async def test_a_damaged_origin_does_not_damage_the_job(
    queue: Queue, store: sync_redis.Redis
) -> None:
    leased = await lease(queue)
    store.hset(keys.job(0, leased.id), "origin", b"\xff\xfe no origin")
    job = await queue.get(leased.id)
    assert job is not None
    assert job.id == leased.id
