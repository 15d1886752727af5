"""Emit: only the lease's holder writes, each entry once, one message per gateway."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from shared import keys
from shared.channel import FrameKind, decode
from shared.envelope import Folder, Unfolder
from shared.job import LeasedJob, new_job_id
from shared.queue import Emission, JobQueue, make_emission
from shared.states import JobEvent, JobState
from shared.token_log import NO_CHUNKS, Delta, pack_chunks, pack_journal, unpack_journal
from tests.redis.conftest import (
    GATEWAY,
    TENANT,
    WORKER,
    Listener,
    answer,
    emission,
    finish,
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


def everything(store: Redis) -> dict[bytes, bytes]:
    """All that Redis holds."""
    return {key: store.dump(key) for key in store.scan_iter()}


async def test_a_step_stands_in_the_log_and_reaches_the_gateway(
    queue: JobQueue, gateway: Listener
) -> None:
    job = await lease(queue)
    assert await say(queue, job, 1, "He") == {}
    assert await say(queue, job, 2, "llo") == {}
    entries = await queue.entries(job.id, 0)
    assert [(e.seq, e.items, e.end) for e in entries] == [
        (1, (b"He",), ""),
        (2, (b"llo",), ""),
    ]
    assert unpack_journal(entries[1].journal) == [Delta(0, 0, (2,), "llo")]
    assert gateway.frames() == [
        (job.id.encode(), 1, FrameKind.CHUNK, (b"He",)),
        (job.id.encode(), 2, FrameKind.CHUNK, (b"llo",)),
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
    assert [e.items for e in await queue.entries(old.id, 0)] == [(b"new",)]


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
    items = ((size, 0), chunk, (0, size), chunk)
    await queue.emit(0, [make_emission(job, 1, pack_chunks(items), chunk)])
    (entry,) = await queue.entries(job.id, 0)
    assert (entry.items, entry.journal) == (items, chunk)
    assert [frame[3] for frame in gateway.frames()] == [items]


async def test_what_is_folded_is_unfolded_from_the_log_and_from_the_frames(
    queue: JobQueue, gateway: Listener
) -> None:
    job = await lease(queue)
    chunks = [b'data: {"id": "cmpl-1", "text": "%s"}\n\n' % text for text in (b"a", b"b", b"c")]
    folder = Folder()
    for seq, chunk in enumerate(chunks, 1):
        items = folder.fold([chunk])
        journal = pack_journal([Delta(0, 0, (seq,), chunk.decode()[-5])], items)
        assert await queue.emit(0, [make_emission(job, seq, pack_chunks(items), journal)]) == {}
    entries, frames = await queue.entries(job.id, 0), gateway.frames()
    assert entries[2].items == (b"c",)
    assert unpack_journal(entries[2].journal, entries[2].items) == [Delta(0, 0, (3,), "c")]
    for steps in ([entry.items for entry in entries], [frame[3] for frame in frames]):
        unfolder = Unfolder()
        assert [unfolder.unfold(items) for items in steps] == chunks


async def test_a_step_of_a_stream_without_a_chunk_is_counted(
    queue: JobQueue, gateway: Listener
) -> None:
    job = await lease(queue)
    journal = pack_journal([Delta(0, 0, (1,), "")])
    assert await queue.emit(0, [make_emission(job, 1, NO_CHUNKS, journal)]) == {}
    assert gateway.frames() == [(job.id.encode(), 1, FrameKind.CHUNK, None)]
    (entry,) = await queue.entries(job.id, 0)
    assert (entry.items, entry.journal) == ((), journal)


async def test_a_step_of_many_jobs_is_one_call(queue: JobQueue, store: Redis) -> None:
    for _ in range(256):
        await submit(queue)
    jobs = await take(queue, 256)
    store.config_resetstat()
    assert await queue.emit(0, [emission(job, 1) for job in jobs]) == {}
    assert store.info("commandstats")["cmdstat_evalsha"]["calls"] == 1
    assert store.info("commandstats")["cmdstat_rpush"]["calls"] == 256


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


# --- a list for a log ---


@pytest.mark.parametrize("seq", [2, 3, 9])
async def test_a_number_that_is_too_high_leaves_a_hole(
    queue: JobQueue, store: Redis, gateway: Listener, seq: int
) -> None:
    """Redis was killed and has lost the entries between."""
    job = await lease(queue)
    await say(queue, job, 1)
    for number in range(2, seq):
        await say(queue, job, number)
    store.ltrim(keys.log(0, job.id), 0, 0)
    gateway.frames()
    assert await say(queue, job, seq, "behind") == {}
    assert await say(queue, job, seq, "behind") == {}  # again
    entries = await queue.entries(job.id, 0)
    assert [(e.seq, e.lost) for e in entries] == [
        (number, 1 < number < seq) for number in range(1, seq + 1)
    ]
    assert entries[-1].items == (b"behind",)
    assert [frame[1] for frame in gateway.frames()] == [seq]
    assert await say(queue, job, seq + 1) == {}
    assert [e.seq for e in await queue.entries(job.id, seq)] == [seq + 1]


async def test_a_number_that_is_too_high_is_kept_in_an_empty_log(queue: JobQueue) -> None:
    job = await lease(queue)
    assert await say(queue, job, 3) == {}
    assert [(e.seq, e.lost) for e in await queue.entries(job.id, 0)] == [
        (1, True),
        (2, True),
        (3, False),
    ]
    last = await queue.last_entry(job.id)
    assert last is not None
    assert (last.seq, last.items) == (3, (b"x",))


async def test_the_end_behind_a_hole_is_found_at_its_number(
    queue: JobQueue, store: Redis, gateway: Listener
) -> None:
    job = await lease(queue)
    for seq in (1, 2, 3):
        await say(queue, job, seq)
    store.ltrim(keys.log(0, job.id), 0, 0)
    gateway.frames()
    assert await finish(queue, job, 4, answer()) == "ok"
    entries = await queue.entries(job.id, 0)
    assert [(e.seq, e.lost, e.end) for e in entries] == [
        (1, False, ""),
        (2, True, ""),
        (3, True, ""),
        (4, False, "completed"),
    ]
    last = await queue.last_entry(job.id)
    assert last == entries[-1]
    assert gateway.frames() == [(job.id.encode(), 4, FrameKind.DONE, b"")]


async def test_entries_behind_a_number_are_those_of_the_list(queue: JobQueue) -> None:
    job = await lease(queue)
    for seq in range(1, 6):
        await say(queue, job, seq, str(seq))
    for after in range(7):
        found = await queue.entries(job.id, after)
        assert [(e.seq, e.items) for e in found] == [
            (seq, (b"%d" % seq,)) for seq in range(after + 1, 6)
        ]


# --- the end in the same call ---


def last_words(job: LeasedJob, seq: int, **changes: Any) -> Emission:
    """The last output of a job and its end."""
    return emission(job, seq, "last", answer(**changes))


async def test_the_last_output_and_the_end_are_one_call_and_one_message(
    queue: JobQueue, store: Redis, gateway: Listener
) -> None:
    job = await lease(queue)
    await say(queue, job, 1)
    gateway.messages()
    store.config_resetstat()
    assert await queue.emit(0, [last_words(job, 2)]) == {}
    assert store.info("commandstats")["cmdstat_evalsha"]["calls"] == 1
    assert published(store) == 1
    (message,) = gateway.messages()
    assert list(decode(message)) == [
        (job.id.encode(), 2, FrameKind.CHUNK, (b"last",)),
        (job.id.encode(), 3, FrameKind.DONE, b""),
    ]
    assert [(e.seq, e.items, e.end) for e in await queue.entries(job.id, 1)] == [
        (2, (b"last",), ""),
        (3, (), "completed"),
    ]
    ended = await queue.get(job.id)
    assert ended is not None
    assert ended.state is JobState.COMPLETED
    assert not store.exists(keys.lease(0, job.id))


async def test_the_last_journal_and_the_result_are_one_message_for_who_watches(
    queue: JobQueue, gateway: Listener
) -> None:
    job = await lease(queue, stream=False)
    await queue.watch(job.id, GATEWAY, sees=True)
    whole = {"content_type": "application/json", "body": b"{}"}
    assert await queue.emit(0, [last_words(job, 1, **whole)]) == {}
    (message,) = gateway.messages()
    deltas, result = decode(message)
    assert deltas[1:3] == (1, FrameKind.DELTAS)
    assert unpack_journal(deltas[3]) == [Delta(0, 0, (1,), "last")]
    assert result == (job.id.encode(), 2, FrameKind.RESULT, (200, b"application/json", b"{}"))


async def test_who_waits_for_the_result_alone_hears_of_nothing_else(
    queue: JobQueue, gateway: Listener
) -> None:
    job = await lease(queue, stream=False)
    assert await queue.emit(0, [last_words(job, 1, body=b"{}")]) == {}
    assert [frame[1:3] for frame in gateway.frames()] == [(2, FrameKind.RESULT)]
    assert [e.seq for e in await queue.entries(job.id, 0)] == [1, 2]


async def test_a_call_whose_reply_was_lost_is_repeated_and_changes_nothing(
    queue: JobQueue, store: Redis, gateway: Listener
) -> None:
    job = await lease(queue)
    step = [last_words(job, 1)]
    assert await queue.emit(0, step) == {}
    assert len(gateway.frames()) == 2
    before = everything(store)
    assert await queue.emit(0, step) == {}
    assert everything(store) == before
    assert gateway.frames() == []
    other = [last_words(job, 1, event=JobEvent.FAIL, error_code="engine_error", status=500)]
    assert await queue.emit(0, other) == {job.id: "completed"}
    assert everything(store) == before


async def test_of_a_repeated_call_only_what_is_new_happens(
    queue: JobQueue, gateway: Listener
) -> None:
    """The output stood in a call whose reply was lost; nothing is told of it again."""
    job = await lease(queue)
    await say(queue, job, 1, "last")
    gateway.frames()
    assert await queue.emit(0, [last_words(job, 1)]) == {}
    assert [frame[1:3] for frame in gateway.frames()] == [(2, FrameKind.DONE)]
    assert [(e.seq, e.end) for e in await queue.entries(job.id, 0)] == [(1, ""), (2, "completed")]


@pytest.mark.parametrize("nonce", ["0" * 16, "", "0" * 15, "0" * 17])
async def test_a_wrong_nonce_ends_nothing_and_says_nothing(
    queue: JobQueue, store: Redis, gateway: Listener, nonce: str
) -> None:
    job = await lease(queue)
    before = everything(store)
    stranger = replace(job, nonce=nonce)
    assert await queue.emit(0, [last_words(stranger, 1)]) == {job.id: "in_progress"}
    assert everything(store) == before
    assert gateway.frames() == []


async def test_a_job_whose_hash_is_gone_is_not_ended(
    queue: JobQueue, store: Redis, gateway: Listener
) -> None:
    job = await lease(queue)
    store.delete(keys.job(0, job.id))
    assert await queue.emit(0, [last_words(job, 1)]) == {job.id: "gone"}
    assert FrameKind.DONE not in [frame[2] for frame in gateway.frames()]
    assert not store.exists(keys.job(0, job.id))
    assert all(not e.end for e in await queue.entries(job.id, 0))


async def test_a_job_that_redis_knows_nothing_of_is_not_ended(
    queue: JobQueue, store: Redis
) -> None:
    job = await lease(queue)
    store.flushall()
    assert await queue.emit(0, [last_words(job, 1)]) == {job.id: "gone"}
    assert store.keys() == []


async def test_a_step_in_which_jobs_go_on_end_and_are_lost(
    queue: JobQueue, store: Redis, gateway: Listener
) -> None:
    for _ in range(5):
        await submit(queue)
    on, ends, cancelled, silent, gone = await take(queue)
    await queue.cancel(cancelled.id, TENANT)
    store.delete(keys.job(0, gone.id), keys.lease(0, gone.id))
    gateway.frames()
    store.config_resetstat()
    lost = await queue.emit(
        0,
        [
            last_words(cancelled, 1),
            emission(on, 1),
            last_words(ends, 1),
            last_words(gone, 1),
            make_emission(
                silent, 1, b"", b"", answer(event=JobEvent.FAIL, error_code="engine_error")
            ),
        ],
    )
    assert lost == {cancelled.id: "cancelled", gone.id: "gone"}
    assert published(store) == 1
    assert [(frame[0].decode(), *frame[1:3]) for frame in gateway.frames()] == [
        (on.id, 1, FrameKind.CHUNK),
        (ends.id, 1, FrameKind.CHUNK),
        (ends.id, 2, FrameKind.DONE),
        (silent.id, 1, FrameKind.DONE),
    ]
    states = [await queue.get(job.id) for job in (on, ends, cancelled, silent)]
    assert [job and job.state for job in states] == [
        JobState.IN_PROGRESS,
        JobState.COMPLETED,
        JobState.CANCELLED,
        JobState.FAILED,
    ]


async def test_a_job_that_nobody_waits_for_ends_without_a_message(
    queue: JobQueue, store: Redis
) -> None:
    job = await lease(queue, gateway="")
    store.config_resetstat()
    assert await queue.emit(0, [last_words(job, 1)]) == {}
    assert published(store) == 0
    assert [e.end for e in await queue.entries(job.id, 0)] == ["", "completed"]


async def test_a_call_of_several_long_answers_is_taken(queue: JobQueue) -> None:
    for _ in range(4):
        await submit(queue, stream=False)
    jobs = await take(queue)
    bodies = {job.id: bytes([i]) * (1 << 20) for i, job in enumerate(jobs)}
    step = [make_emission(job, 1, b"", b"", answer(body=bodies[job.id])) for job in jobs]
    assert await queue.emit(0, step) == {}
    for job in jobs:
        ended = await queue.get(job.id)
        assert ended is not None
        assert ended.result == bodies[job.id]
