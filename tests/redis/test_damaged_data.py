"""Damaged data of each kind is set aside and counted, and the other jobs go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgpack
import pytest
from redis import Redis

from shared.job.frames import FrameKind
from shared.job.job import LeasedJob, NewJob, new_job_id
from shared.job.lanes import DEFAULT, RETRY_LANE
from shared.store.redis import dead_letters, keys
from shared.store.redis.depths import depths, positions
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.listing import page
from tests.redis.conftest import (
    LEASE_S,
    POOL,
    TENANT,
    WORKER,
    ChannelSubscriber,
    answer,
    claim,
    claim_one,
    emit,
    emit_and_flush,
    emit_token,
    end_without_output,
    expire_lease,
    finish,
    lease,
    log_entries,
    renew,
    repair,
    submit,
)

GARBAGE = b"\xc1\x00 damaged"
STREAM = keys.queue(0, POOL, DEFAULT)


@pytest.fixture(autouse=True)
async def others_go_on(queue: JobQueue) -> AsyncIterator[None]:
    """After every test, a job is listed, leased, answered and read."""
    yield
    job = await submit(queue, tenant="other")
    leased = {each.id: each for each in await claim(queue)}[job.id]
    assert await emit_and_flush(queue, leased) == {}
    assert await finish(queue, leased, 2, answer()) == "ok"
    assert [entry.end for entry in await log_entries(queue, job.id, 0)] == ["", "completed"]
    assert [row[2] and row[2].state for row in await page(queue, ["other"], None, 10)] == [
        "completed"
    ]
    await depths(queue)
    await queue.reap(0, LEASE_S)
    await queue.expire(0)
    await queue.sweep(0)


def damage(store: Redis, job: NewJob | LeasedJob, field: str, value: bytes | None) -> None:
    key = keys.job(0, job.id)
    if value is None:
        store.hdel(key, field)
    else:
        store.hset(key, field, value)


async def assert_set_aside(queue: JobQueue, store: Redis, job: NewJob | LeasedJob) -> None:
    """Assert that the job has failed with the reason, and that its bytes are a dead letter."""
    seen = await queue.get(job.id)
    assert seen is not None
    assert (seen.state, seen.error_code) == ("failed", "record_damaged")
    letters = [fields for _, fields in store.xrange(keys.dead_letters(0))]
    assert [letter[b"id"] for letter in letters] == [job.id.encode()]
    assert letters[0][b"what"] == b"job"
    assert (await dead_letters.count(queue)) == (1, {"job": 1})
    ttl_ms = store.pttl(keys.job(0, job.id))
    assert ttl_ms > 0
    assert (await log_entries(queue, job.id, 0))[-1].end == "failed"


WAITING = {
    "request": GARBAGE,
    "state": b"asleep",
    "created_us": b"yesterday",
    "deadline_us": b"soon",
    "body": None,
}


@pytest.mark.parametrize(("field", "value"), WAITING.items())
async def test_a_waiting_job_is_set_aside_when_it_is_claimed(
    queue: JobQueue, store: Redis, gateway: ChannelSubscriber, field: str, value: bytes | None
) -> None:
    damaged, other = await submit(queue), await submit(queue)
    damage(store, damaged, field, value)
    assert [job.id for job in await claim(queue)] == [other.id]
    await assert_set_aside(queue, store, damaged)
    ended = [(job, kind) for job, _, kind, _, _ in gateway.frames()]
    assert ended == [(damaged.id.encode(), FrameKind.ENDED)]  # its gateway does not wait any longer
    assert [depth.waiting for depth in await depths(queue)] == [0] * 5 or field == "request"
    await repair(queue)
    assert sum(depth.waiting for depth in await depths(queue)) == 0


LISTED = {field: value for field, value in WAITING.items() if field != "body"}


@pytest.mark.parametrize(("field", "value"), LISTED.items())
async def test_a_listing_shows_a_damaged_job_as_failed(
    queue: JobQueue, store: Redis, field: str, value: bytes | None
) -> None:
    damaged, other = await submit(queue), await submit(queue)
    damage(store, damaged, field, value)
    rows = {job_id: job for _, job_id, job in await page(queue, [TENANT], None, 10)}
    assert set(rows) == {damaged.id, other.id}
    seen, sound = rows[damaged.id], rows[other.id]
    assert seen is not None
    assert sound is not None
    assert (seen.state, seen.error_code) == ("failed", "record_damaged")
    assert await positions(queue, [sound]) == [1 if field != "request" else 2]
    await assert_set_aside(queue, store, damaged)


HELD = {"lease": GARBAGE, "request": GARBAGE, "state": b"asleep"}
Touch = Callable[[JobQueue, LeasedJob], Any]
TOUCHES: dict[str, Touch] = {
    "renew": lambda queue, job: renew(queue, WORKER, [job]),
    "emit": lambda queue, job: emit(queue, [end_without_output(job, 1, answer())], worker=WORKER),
    "reap": lambda queue, job: queue.reap(0, LEASE_S),
    "cancel": lambda queue, job: queue.cancel(job.id, TENANT),
    "watch": lambda queue, job: queue.watch(job.id, "gw-2", follow=True),
    "release": lambda queue, job: queue.release([job], "drained", blame=False),
    "read": lambda queue, job: queue.read_log(job.id, 0),
    "get": lambda queue, job: queue.get(job.id),
    "repair": lambda queue, job: repair(queue),
}


@pytest.mark.parametrize("touch", TOUCHES)
@pytest.mark.parametrize(("field", "value"), HELD.items())
async def test_a_job_in_progress_is_set_aside_by_every_call(
    queue: JobQueue, store: Redis, touch: str, field: str, value: bytes | None
) -> None:
    job = await lease(queue)
    expire_lease(store, job)
    damage(store, job, field, value)
    await TOUCHES[touch](queue, job)
    await assert_set_aside(queue, store, job)
    assert await queue.ended(0, [job.id]) == {job.id: "failed"}


async def test_a_state_that_is_unknown_counts_as_an_end_for_readers(
    queue: JobQueue, store: Redis
) -> None:
    job = await lease(queue)
    damage(store, job, "state", b"asleep")
    assert await queue.ended(0, [job.id]) == {job.id: "failed"}


@pytest.mark.parametrize("value", [GARBAGE, b"{}x", b"7", b'{"a": 1}', b'[{"worker": 1}]'])
async def test_a_history_is_set_aside_alone(queue: JobQueue, store: Redis, value: bytes) -> None:
    job = await lease(queue, stream=False)
    damage(store, job, "history", value)
    seen = await queue.get(job.id)
    assert seen is not None
    assert (seen.state, len(seen.attempts)) == ("in_progress", 1)
    damage(store, job, "history", value)
    if value.startswith((b"[", b'{"')):
        return  # JSON that only Python finds damaged
    assert await queue.release([job], "drained", blame=False) == {job.id: "queued"}
    assert (await claim_one(queue)).id == job.id


@pytest.mark.parametrize("value", [GARBAGE, b"", msgpack.packb([200]), msgpack.packb(["x"] * 4)])
async def test_the_response_of_an_ended_job(queue: JobQueue, store: Redis, value: bytes) -> None:
    job = await lease(queue)
    await finish(queue, job, 1, answer())
    damage(store, job, "response", value)
    seen = await queue.get(job.id)
    assert seen is not None
    if not value:
        assert (seen.state, seen.status) == ("completed", 0)
        return
    assert (seen.state, seen.error_code) == ("failed", "record_damaged")


async def test_a_missing_entry_is_put_right_by_a_repair(queue: JobQueue, store: Redis) -> None:
    for value in (None, b"", b"no entry", b"1-x"):
        job = await submit(queue)
        damage(store, job, "entry", value)
        assert await claim(queue) == []
        assert (await repair(queue))["entries"] == 1
        assert (await claim_one(queue)).id == job.id
    job = await submit(queue)
    damage(store, job, "entry", b"no entry")
    assert await queue.cancel(job.id, TENANT) == "cancelled"


@pytest.mark.parametrize("lane", [DEFAULT, RETRY_LANE])
async def test_a_stream_entry_without_a_job_is_set_aside_once(
    queue: JobQueue, store: Redis, lane: str
) -> None:
    store.xadd(keys.queue(0, POOL, lane), {"jub": "job_0", "more": GARBAGE})
    job = await submit(queue)
    assert (await claim_one(queue)).id == job.id
    if lane == DEFAULT:
        await repair(queue)
    ((_, letter),) = store.xrange(keys.dead_letters(0))
    assert (letter[b"what"], letter[b"value:more"]) == (b"entry", GARBAGE)
    assert store.xlen(STREAM) == 1


@pytest.mark.parametrize("segment", [GARBAGE, b"", b"x", msgpack.packb("text")])
async def test_an_unreadable_segment(queue: JobQueue, store: Redis, segment: bytes) -> None:
    """The job can't be completed, as with every entry that Redis has lost."""
    job = await lease(queue)
    await emit_and_flush(queue, job)
    store.rpush(keys.log(0, job.id), segment)
    entries = await log_entries(queue, job.id, 0)
    assert [entry.seq for entry in entries] == [1]
    assert await finish(queue, job, 2, answer()) == "failed"
    assert (await dead_letters.count(queue)).written == {"log": 1}
    seen = await queue.get(job.id)
    assert seen is not None
    assert seen.error_code == "log_lost"


async def test_entries_that_only_the_reader_finds_damaged(queue: JobQueue, store: Redis) -> None:
    job = await lease(queue)
    await emit_and_flush(queue, job)
    segment = msgpack.packb(2) + msgpack.packb(2) + msgpack.packb(None) + GARBAGE
    store.rpush(keys.log(0, job.id), segment)
    entries = await log_entries(queue, job.id, 0)
    assert [(entry.seq, entry.lost) for entry in entries] == [(1, False), (2, True), (3, True)]
    ((_, letter),) = store.xrange(keys.dead_letters(0))
    assert (letter[b"what"], letter[b"value:segment"]) == (b"log", segment)
    assert await finish(queue, job, 2, answer()) == "failed"


async def test_the_last_segment_of_an_ended_job_is_rebuilt(queue: JobQueue, store: Redis) -> None:
    job = await lease(queue)
    await finish(queue, job, 1, answer())
    store.lset(keys.log(0, job.id), -1, GARBAGE)
    entries = await log_entries(queue, job.id, 0)
    assert [entry.end for entry in entries] == ["completed"]
    assert store.pttl(keys.log(0, job.id)) > 0


@pytest.mark.parametrize("at", [0, 1])
async def test_an_unreadable_step(queue: JobQueue, store: Redis, at: int) -> None:
    job = await lease(queue)
    await emit_token(queue, job, 1)
    steps = keys.steps(0, WORKER)
    sound = store.lindex(steps, at)
    store.lset(steps, at, GARBAGE if at == 0 else sound[: 5 + len(job.id)])
    assert await log_entries(queue, job.id, 0) == []
    assert await log_entries(queue, job.id, 0) == []
    assert (await dead_letters.count(queue)).written in ({"steps": 1}, {})
    assert await queue.cancel(job.id, TENANT) == "cancelled"


async def test_index_members_without_a_job(queue: JobQueue, store: Redis) -> None:
    job = await submit(queue)
    store.zadd(keys.jobs(0, TENANT), {GARBAGE: 1, "job_x": 2, new_job_id(1): float("inf")})
    store.zadd(keys.waiting(0, POOL, DEFAULT), {GARBAGE: 1})
    for word in (keys.DEADLINES, keys.EXPIRING):
        store.zadd(keys.base(0) + word, {GARBAGE: 1, "": 2})
    store.zadd(keys.advertised(0, POOL), {GARBAGE: 9, "": 8, "w-1": 7})
    rows = await page(queue, [TENANT], None, 10)
    assert [job_id for _, job_id, _ in rows] == [job.id]
    await queue.expire(0)
    await queue.sweep(0)
    await queue.sweep(0)
    assert store.zcard(keys.base(0) + keys.EXPIRING) == 0
    assert store.zcard(keys.advertised(0, POOL)) == 0
    assert (await dead_letters.count(queue)).written["member"] >= 6
    await repair(queue)
    assert store.zcard(keys.waiting(0, POOL, DEFAULT)) == 1


WRONG_TYPES = {
    "queue": STREAM,
    "retry queue": keys.queue(0, POOL, RETRY_LANE),
    "waiting": keys.waiting(0, POOL, DEFAULT),
    "wake_ups": keys.wake_ups(0, POOL),
    "advertised": keys.advertised(0, POOL),
    "deadlines": keys.base(0) + keys.DEADLINES,
    "expiring": keys.base(0) + keys.EXPIRING,
    "jobs": keys.jobs(0, TENANT),
    "pool_names": keys.base(0) + keys.POOL_NAMES,
    "dead_letters": keys.dead_letters(0),
    "dead_letter_counts": keys.base(0) + keys.DEAD_LETTER_COUNTS,
    "reap_clock": keys.base(0) + keys.REAP_CLOCK,
    "fence": keys.fence(0, WORKER),
    "steps": keys.steps(0, WORKER),
}


@pytest.mark.parametrize("name", WRONG_TYPES)
async def test_a_key_of_the_wrong_type_is_set_aside(
    queue: JobQueue, store: Redis, name: str
) -> None:
    running = await lease(queue, deadline_s=60)
    key = WRONG_TYPES[name]
    store.delete(key)
    if name in {"reap_clock", "fence"}:
        store.rpush(key, "wrong")
    else:
        store.set(key, "wrong")
    await page(queue, [TENANT], None, 10)
    await depths(queue)
    await dead_letters.count(queue)
    waiting = await submit(queue, deadline_s=60)
    await emit_token(queue, running, 1)
    await queue.reap(0, LEASE_S, longest_pause_s=1)
    await queue.expire(0)
    await queue.sweep(0)
    await repair(queue)
    taken = {job.id for job in await claim(queue)}
    assert waiting.id in taken
    await finish(queue, running, 2, answer())
    if name in {"dead_letters", "dead_letter_counts"}:  # they exist only after a job was set aside
        damage(store, waiting, "state", b"asleep")
        await queue.get(waiting.id)
    else:
        assert (await dead_letters.count(queue)).written == {"key": 1}
    assert store.type(key) != (b"list" if name in {"reap_clock", "fence"} else b"string")


async def test_a_record_of_the_wrong_type(queue: JobQueue, store: Redis) -> None:
    waiting, running = await submit(queue), await submit(queue)
    store.set(keys.job(0, waiting.id), "no hash")
    assert [job.id for job in await claim(queue)] == [running.id]
    store.delete(keys.job(0, running.id))
    store.set(keys.job(0, running.id), "no hash")
    for job in (waiting, running):
        seen = await queue.get(job.id)
        assert seen is not None
        assert (seen.state, seen.error_code) == ("failed", "record_damaged")
    assert (await dead_letters.count(queue)).written == {"key": 2}


async def test_a_log_of_the_wrong_type_fails_its_job(queue: JobQueue, store: Redis) -> None:
    job, other = await lease(queue), await lease(queue)
    await emit_and_flush(queue, job)
    store.delete(keys.log(0, job.id))
    store.set(keys.log(0, job.id), "no list")
    assert await finish(queue, job, 2, answer()) == "failed"
    assert await finish(queue, other, 1, answer()) == "ok"


async def test_a_job_whose_log_was_lost_is_not_started_again(queue: JobQueue, store: Redis) -> None:
    """Its client has received the beginning of the answer."""
    job = await lease(queue)
    await emit_and_flush(queue, job)
    store.delete(keys.log(0, job.id), keys.steps(0, WORKER))
    store.set(keys.log(0, job.id), "no list")
    assert await queue.release([job], "drained", blame=False) == {job.id: "failed"}


async def test_two_processes_that_find_the_same_damage_set_it_aside_once(
    queue: JobQueue, store: Redis
) -> None:
    damaged = await submit(queue)
    damage(store, damaged, "request", GARBAGE)
    await asyncio.gather(*(page(queue, [TENANT], None, 10) for _ in range(5)))
    assert (await dead_letters.count(queue)).written == {"job": 1}
