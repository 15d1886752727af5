"""Emit: only the lease's holder writes, each entry once, one message per gateway."""

from __future__ import annotations

from dataclasses import replace

import pytest
from redis import Redis

from shared import keys
from shared.channel import FrameKind
from shared.job import new_job_id
from shared.queue import JobQueue
from shared.token_log import Delta, unpack_journal
from tests.redis.conftest import (
    GATEWAY,
    TENANT,
    WORKER,
    Listener,
    emission,
    grow_old,
    lease,
    say,
    submit,
    take,
    take_one,
)


def published(store: Redis) -> int:
    """How often PUBLISH was called since the last reset of the statistics."""
    calls: int = store.info("commandstats").get("cmdstat_publish", {}).get("calls", 0)
    return calls


async def test_a_step_stands_in_the_log_and_reaches_the_gateway(
    queue: JobQueue, gateway: Listener
) -> None:
    job = await lease(queue)
    assert await say(queue, job, 1, "He") == {}
    assert await say(queue, job, 2, "llo") == {}
    entries = await queue.entries(job.id, 0)
    assert [(e.seq, e.chunk, e.end) for e in entries] == [(1, b"He", ""), (2, b"llo", "")]
    assert unpack_journal(entries[1].journal) == [Delta(0, 0, (2,), "llo")]
    assert gateway.frames() == [
        (job.id.encode(), 1, FrameKind.CHUNK, b"He"),
        (job.id.encode(), 2, FrameKind.CHUNK, b"llo"),
    ]


@pytest.mark.parametrize("nonce", ["0" * 16, "", "0" * 15, "0" * 17])
async def test_a_wrong_nonce_writes_nothing(queue: JobQueue, gateway: Listener, nonce: str) -> None:
    job = await lease(queue)
    assert await say(queue, replace(job, nonce=nonce), 1) == {job.id: "in_progress"}
    assert await queue.entries(job.id, 0) == []
    assert gateway.frames() == []


async def test_a_nonce_with_the_lease_behind_it_is_no_nonce(queue: JobQueue, store: Redis) -> None:
    job = await lease(queue)
    whole = store.get(keys.lease(0, job.id)).decode()
    assert await say(queue, replace(job, nonce=whole), 1) == {job.id: "in_progress"}


async def test_after_a_cancel_nothing_is_written(queue: JobQueue, gateway: Listener) -> None:
    job = await lease(queue)
    await say(queue, job, 1)
    await queue.cancel(job.id, TENANT)
    gateway.frames()
    assert await say(queue, job, 2) == {job.id: "cancelled"}
    assert [e.end for e in await queue.entries(job.id, 0)] == ["", "cancelled"]
    assert gateway.frames() == []


async def test_after_a_reap_the_old_worker_writes_nothing_and_the_new_one_does(
    queue: JobQueue, store: Redis
) -> None:
    old = await lease(queue)
    grow_old(store, old)
    await queue.reap(0, 1.0)
    assert await say(queue, old, 1) == {old.id: "queued"}
    new = await take_one(queue, worker="w-2")
    assert await say(queue, old, 1, "old") == {old.id: "in_progress"}
    assert await say(queue, new, 1, "new") == {}
    assert [e.chunk for e in await queue.entries(old.id, 0)] == [b"new"]


async def test_a_job_that_is_gone_is_lost(queue: JobQueue, store: Redis) -> None:
    job = await lease(queue)
    store.flushall()
    assert await say(queue, job, 1) == {job.id: "gone"}
    assert store.keys() == []


async def test_a_repeated_call_appends_and_publishes_nothing(
    queue: JobQueue, gateway: Listener
) -> None:
    job = await lease(queue)
    for seq in (1, 1, 2, 2, 1):
        assert await say(queue, job, seq) == {}
    assert [e.seq for e in await queue.entries(job.id, 0)] == [1, 2]
    assert [frame[1] for frame in gateway.frames()] == [1, 2]


async def test_one_lost_job_does_not_keep_the_others_of_its_step_back(
    queue: JobQueue, gateway: Listener
) -> None:
    for _ in range(3):
        await submit(queue)
    jobs = await take(queue)
    await queue.cancel(jobs[1].id, TENANT)
    gateway.frames()
    lost = await queue.emit(0, [emission(job, 1) for job in jobs])
    assert lost == {jobs[1].id: "cancelled"}
    assert [frame[0].decode() for frame in gateway.frames()] == [jobs[0].id, jobs[2].id]


async def test_one_message_per_gateway_however_many_jobs(
    queue: JobQueue, store: Redis, gateway: Listener, other_gateway: Listener
) -> None:
    for i in range(64):
        await submit(queue, gateway=GATEWAY if i % 2 else "gw-2")
    jobs = await take(queue)
    store.config_resetstat()
    assert await queue.emit(0, [emission(job, 1) for job in jobs]) == {}
    assert published(store) == 2
    mine, others = gateway.messages(), other_gateway.messages()
    assert (len(mine), len(others)) == (1, 1)


async def test_two_gateways_hear_of_one_job(
    queue: JobQueue, gateway: Listener, other_gateway: Listener
) -> None:
    job = await lease(queue)
    await queue.watch(job.id, "gw-2", sees=True)
    await say(queue, job, 1)
    assert gateway.frames() == other_gateway.frames() != []


async def test_a_job_that_nobody_waits_for_is_logged_and_not_published(
    queue: JobQueue, store: Redis
) -> None:
    job = await lease(queue, gateway="")
    store.config_resetstat()
    await say(queue, job, 1)
    assert published(store) == 0
    assert len(await queue.entries(job.id, 0)) == 1


async def test_deltas_of_an_answer_that_is_not_streamed_go_to_watchers_only(
    queue: JobQueue, gateway: Listener
) -> None:
    job = await lease(queue, stream=False)
    await say(queue, job, 1)
    assert gateway.frames() == []
    await queue.watch(job.id, GATEWAY, sees=True)
    await say(queue, job, 2)
    ((_, seq, kind, payload),) = gateway.frames()
    assert (seq, kind) == (2, FrameKind.DELTAS)
    assert unpack_journal(payload) == [Delta(0, 0, (2,), "x")]
    assert [e.seq for e in await queue.entries(job.id, 0)] == [1, 2]


@pytest.mark.parametrize("size", [0, 1, 31, 32, 255, 256, 65_535, 65_536, 1_000_000])
async def test_any_bytes_of_any_size_come_out_as_they_went_in(
    queue: JobQueue, gateway: Listener, size: int
) -> None:
    job = await lease(queue)
    chunk = (bytes(range(256)) * (size // 256 + 1))[:size]
    await queue.emit(0, [replace(emission(job, 1), chunk=chunk)])
    assert (await queue.entries(job.id, 0))[0].chunk == chunk
    assert [frame[3] for frame in gateway.frames()] == [chunk]


async def test_a_step_of_many_jobs_is_one_call(queue: JobQueue, store: Redis) -> None:
    for _ in range(256):
        await submit(queue)
    jobs = await take(queue, 256)
    store.config_resetstat()
    assert await queue.emit(0, [emission(job, 1) for job in jobs]) == {}
    assert store.info("commandstats")["cmdstat_evalsha"]["calls"] == 1
    assert store.info("commandstats")["cmdstat_xadd"]["calls"] == 256


async def test_the_renewal_tells_of_lost_jobs_as_an_emission_does(
    queue: JobQueue, store: Redis
) -> None:
    for _ in range(3):
        await submit(queue)
    mine, cancelled, gone = await take(queue)
    await queue.cancel(cancelled.id, TENANT)
    store.delete(keys.job(0, gone.id), keys.lease(0, gone.id))
    lost = await queue.renew(WORKER, [mine, cancelled, gone])
    assert lost == {cancelled.id: "cancelled", gone.id: "gone"}
    assert await queue.renew(WORKER, [replace(mine, id=new_job_id(1))]) != {}


async def test_nobody_renews_what_another_holds(queue: JobQueue, store: Redis) -> None:
    old = await lease(queue)
    grow_old(store, old)
    await queue.reap(0, 1.0)
    new = await take_one(queue, worker="w-2")
    assert await queue.renew(WORKER, [old]) == {old.id: "in_progress"}
    (entry,) = store.xpending_range(keys.queue(0, "pool", "retry"), keys.GROUP, "-", "+", 9)
    assert entry["consumer"] == b"w-2"
    assert await queue.renew("w-2", [new]) == {}


async def test_one_message_for_a_gateway_that_listens_to_jobs_with_others(
    queue: JobQueue, store: Redis
) -> None:
    await submit(queue)
    await submit(queue)
    alone, shared = await take(queue)
    await queue.watch(shared.id, "gw-2", sees=True)
    store.config_resetstat()
    await queue.emit(0, [emission(alone, 1), emission(shared, 1)])
    assert store.info("commandstats")["cmdstat_publish"]["calls"] == 2
