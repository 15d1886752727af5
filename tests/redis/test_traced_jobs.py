"""Where a job comes from, from its submission to its worker and its record."""

from __future__ import annotations

import redis as sync_redis

from shared.job.advertised_slots import UNKNOWN, SlotUpdate, advertiser
from shared.job.frames import decode_control
from shared.job.idempotency import IdempotencyKey
from shared.job.job import NO_ORIGIN, Origin
from shared.job.trace_context import new_trace
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.scripts.acquire import parse_jobs
from tests.redis.conftest import (
    LEASE_S,
    POOL,
    TENANT,
    WORKER,
    ChannelSubscriber,
    claim_one,
    lease,
    submit,
)

TRACED = Origin(new_trace().traceparent, "req-7")


async def origin_in_record(queue: JobQueue, job_id: str) -> Origin:
    job = await queue.get(job_id)
    assert job is not None
    return job.origin


async def test_a_claimed_job_names_the_request_that_it_comes_from(queue: JobQueue) -> None:
    leased = await lease(queue, origin=TRACED)
    assert leased.origin == TRACED
    assert await origin_in_record(queue, leased.id) == TRACED
    fields = leased.log_fields
    assert (fields["job_id"], fields["attempt"]) == (leased.id, 1)
    assert (fields["request_id"], fields["trace_id"]) == ("req-7", TRACED.traceparent[3:35])


async def test_it_does_so_in_each_of_its_leases(queue: JobQueue) -> None:
    leased = await lease(queue, origin=TRACED)
    await queue.release([leased], "drained", blame=False)
    again = await claim_one(queue)
    assert (again.generation, again.origin) == (2, TRACED)


async def test_a_job_that_is_leased_as_it_is_submitted_names_it_too(
    queue: JobQueue, store: sync_redis.Redis
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


async def test_a_worker_gets_the_request_id_of_a_client_for_its_log_lines(
    queue: JobQueue, store: sync_redis.Redis
) -> None:
    subscriber = ChannelSubscriber(store, keys.control_channel(WORKER))
    slots = SlotUpdate(POOL, advertiser(WORKER, LEASE_S), 4, UNKNOWN)
    await queue.acquire(0, WORKER, 4, LEASE_S, slots)
    job = await submit(queue, origin=Origin(request_id="abc-7"))
    (message,) = subscriber.messages()
    _, parts = decode_control(message)
    (leased,) = parse_jobs(*parts)
    assert leased.tenant == TENANT
    assert leased.origin == await origin_in_record(queue, job.id) == Origin("", "abc-7")
    assert leased.log_fields == {"job_id": job.id, "attempt": 1, "request_id": "abc-7"}
    untraced = await submit(queue)
    (message,) = subscriber.messages()
    subscriber.close()
    _, (_, _, pushed) = decode_control(message)
    expected = [b"", TENANT.encode(), b"default", b"", b"", b""]
    assert pushed[10:] == expected, "it costs a byte without one"
    assert not store.hexists(keys.job(0, untraced.id), "origin")
    assert await origin_in_record(queue, untraced.id) == NO_ORIGIN


async def test_a_damaged_origin_does_not_damage_the_job(
    queue: JobQueue, store: sync_redis.Redis
) -> None:
    leased = await lease(queue)
    store.hset(keys.job(0, leased.id), "origin", b"\xff\xfe no origin")
    job = await queue.get(leased.id)
    assert job is not None
    assert job.id == leased.id
