"""A job whose record can't be read fails with `record_damaged`, and the other jobs go on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgpack
import pytest
from redis import Redis

from shared.job.frames import FrameKind
from shared.job.job import LeasedJob, NewJob
from shared.store.redis import keys
from shared.store.queue import Queue
from shared.store.views import depths, page
from tests.store.conftest import (
    LEASE_S,
    TENANT,
    WORKER,
    ChannelSubscriber,
    answer,
    claim,
    emit,
    emit_and_flush,
    end_without_output,
    expire_lease,
    finish,
    lease,
    log_entries,
    renew,
    submit,
)

GARBAGE = b"\xc1\x00 damaged"


@pytest.fixture(autouse=True)
async def others_go_on(queue: Queue) -> AsyncIterator[None]:
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


async def assert_failed(queue: Queue, store: Redis, job: NewJob | LeasedJob) -> None:
    """Assert that the job has failed with the reason, in the record that everybody reads."""
    seen = await queue.get(job.id)
    assert seen is not None
    assert (seen.state, seen.error_code) == ("failed", "record_damaged")
    assert store.hget(keys.job(0, job.id), "error_code") == b"record_damaged"
    assert store.pttl(keys.job(0, job.id)) > 0
    assert (await log_entries(queue, job.id, 0))[-1].end == "failed"


WAITING = {
    "request": GARBAGE,
    "state": b"asleep",
    "created_us": b"yesterday",
    "deadline_us": b"soon",
    "body": None,
}


@pytest.mark.parametrize(("field", "value"), WAITING.items())
async def test_a_waiting_job_fails_when_it_is_claimed(
    queue: Queue, store: Redis, gateway: ChannelSubscriber, field: str, value: bytes | None
) -> None:
    damaged, other = await submit(queue), await submit(queue)
    damage(store, damaged, field, value)
    assert [job.id for job in await claim(queue)] == [other.id]
    await assert_failed(queue, store, damaged)
    ended = [(job, kind) for job, _, kind, _, _ in gateway.frames()]
    assert ended == [(damaged.id.encode(), FrameKind.ENDED)]  # its gateway does not wait any longer
    assert [depth.waiting for depth in await depths(queue)] == [0] * 5 or field == "request"
    await claim(queue)
    assert sum(depth.waiting for depth in await depths(queue)) == 0


LISTED = {field: value for field, value in WAITING.items() if field != "body"}


@pytest.mark.parametrize(("field", "value"), LISTED.items())
async def test_a_listing_shows_a_damaged_job_as_failed(
    queue: Queue, store: Redis, field: str, value: bytes | None
) -> None:
    damaged, other = await submit(queue), await submit(queue)
    damage(store, damaged, field, value)
    rows = {job_id: job for _, job_id, job in await page(queue, [TENANT], None, 10)}
    assert set(rows) == {damaged.id, other.id}
    seen = rows[damaged.id]
    assert seen is not None
    assert (seen.state, seen.error_code) == ("failed", "record_damaged")
    assert [job.id for job in await claim(queue)] == [other.id]
    await assert_failed(queue, store, damaged)


HELD = {"lease": GARBAGE, "request": GARBAGE, "state": b"asleep"}
Touch = Callable[[Queue, LeasedJob], Any]
TOUCHES: dict[str, Touch] = {
    "renew": lambda queue, job: renew(queue, WORKER, [job]),
    "emit": lambda queue, job: emit(queue, [end_without_output(job, 1, answer())], worker=WORKER),
    "reap": lambda queue, job: queue.reap(0, LEASE_S),
    "cancel": lambda queue, job: queue.cancel(job.id, TENANT),
    "watch": lambda queue, job: queue.watch(job.id, "gw-2", follow=True),
    "release": lambda queue, job: queue.release([job], "drained", blame=False),
    "read": lambda queue, job: queue.read_log(job.id, 0),
}


@pytest.mark.parametrize("touch", TOUCHES)
@pytest.mark.parametrize(("field", "value"), HELD.items())
async def test_a_job_in_progress_fails_at_every_call(
    queue: Queue, store: Redis, touch: str, field: str, value: bytes | None
) -> None:
    job = await lease(queue)
    expire_lease(store, job)
    damage(store, job, field, value)
    await TOUCHES[touch](queue, job)
    await assert_failed(queue, store, job)
    assert await queue.ended(0, [job.id]) == {job.id: "failed"}


@pytest.mark.parametrize("touch", ["reap", "cancel", "watch", "release"])
async def test_a_job_with_a_damaged_history_fails_where_it_is_read(
    queue: Queue, store: Redis, touch: str
) -> None:
    job = await lease(queue)
    expire_lease(store, job)
    damage(store, job, "history", b"{}x")
    await TOUCHES[touch](queue, job)
    await assert_failed(queue, store, job)


async def test_a_state_that_is_unknown_counts_as_an_end_for_readers(
    queue: Queue, store: Redis
) -> None:
    job = await lease(queue)
    damage(store, job, "state", b"asleep")
    assert await queue.ended(0, [job.id]) == {job.id: "failed"}


@pytest.mark.parametrize("value", [GARBAGE, b"", msgpack.packb([200]), msgpack.packb(["x"] * 4)])
async def test_the_response_of_an_ended_job(queue: Queue, store: Redis, value: bytes) -> None:
    job = await lease(queue)
    await finish(queue, job, 1, answer())
    damage(store, job, "response", value)
    seen = await queue.get(job.id)
    assert seen is not None
    if not value:
        assert (seen.state, seen.status) == ("completed", 0)
        return
    assert (seen.state, seen.error_code) == ("failed", "record_damaged")
