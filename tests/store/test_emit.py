"""Emit: only a valid fencing token may write; each entry once, to the gateways that watch."""

from __future__ import annotations

import pytest
from redis import Redis

from shared.job.frames import DeltaDecoder, DeltaEncoder, FrameKind
from shared.job.job_log import Delta, make_journal, read_journal
from shared.job.result import INLINE_RESULT_BYTES
from shared.store.interface import Store
from tests.redis.conftest import (
    GATEWAY,
    LEASE_S,
    TENANT,
    WORKER,
    ChannelSubscriber,
    answer,
    claim,
    claim_one,
    decode,
    emit,
    emit_token,
    end_without_output,
    entry_output,
    expire_lease,
    lease,
    log_entries,
    log_flush,
    output,
    submit,
)
from tests.redis.test_emit import last_output


async def test_a_step_is_stored_in_the_log_and_published_to_the_gateway(
    queue: Store, gateway: ChannelSubscriber
) -> None:
    job = await lease(queue)
    assert await emit_token(queue, job, 1, "He") == {}
    assert await emit_token(queue, job, 2, "llo") == {}
    entries = await log_entries(queue, job.id, 0)
    assert [(e.seq, e.items, e.end) for e in entries] == [
        (1, (b"He",), ""),
        (2, (b"llo",), ""),
    ]
    assert read_journal(entries[1].journal) == [Delta(0, 0, (2,), "llo")]
    assert gateway.frames() == [
        (job.id.encode(), 1, FrameKind.CHUNK, ((0, 0, (1,), b"He"),), (b"He",)),
        (job.id.encode(), 2, FrameKind.CHUNK, ((0, 0, (2,), b"llo"),), (b"llo",)),
    ]


@pytest.mark.parametrize("lease_id", ["0" * 16, "", "0" * 15, "0" * 17])
async def test_a_wrong_lease_id_writes_nothing(
    queue: Store, gateway: ChannelSubscriber, lease_id: str
) -> None:
    job = await lease(queue)
    assert await emit_token(queue, job._replace(lease_id=lease_id), 1) == {job.id: "in_progress"}
    assert await log_entries(queue, job.id, 0) == []
    assert gateway.frames() == []


async def test_after_a_cancel_nothing_is_written(queue: Store, gateway: ChannelSubscriber) -> None:
    job = await lease(queue)
    await emit_token(queue, job, 1)
    await queue.cancel(job.id, TENANT)
    gateway.frames()
    assert await emit_token(queue, job, 2) == {job.id: "cancelled"}
    assert [e.end for e in await log_entries(queue, job.id, 0)] == ["", "cancelled"]
    assert gateway.frames() == []


async def test_after_a_reap_the_old_worker_writes_nothing_and_the_new_one_does(
    queue: Store, server: Redis
) -> None:
    old = await lease(queue)
    expire_lease(server, old)
    await queue.reap(0, 1.0)
    assert await emit_token(queue, old, 1) == {old.id: "queued"}
    new = await claim_one(queue, worker="w-2")
    old_words = output(old, 1, "old")
    assert await emit(queue, [old_words], worker=WORKER) == {old.id: "in_progress"}
    assert await emit_token(queue, new, 1, "new") == {}
    assert [e.items for e in await log_entries(queue, old.id, 0)] == [(b"new",)]


async def test_one_lost_job_does_not_stop_the_others_of_its_step(
    queue: Store, gateway: ChannelSubscriber
) -> None:
    for _ in range(3):
        await submit(queue)
    jobs = await claim(queue)
    await queue.cancel(jobs[1].id, TENANT)
    gateway.frames()
    lost = await emit(queue, [output(job, 1) for job in jobs])
    assert lost == {jobs[1].id: "cancelled"}
    assert [frame[0].decode() for frame in gateway.frames()] == [jobs[0].id, jobs[2].id]


async def test_a_renewal_returns_the_watchers(queue: Store) -> None:
    quiet, streamed, watched = (
        await lease(queue, gateway=""),
        await lease(queue),
        await lease(queue, stream=False),
    )
    await queue.watch(watched.id, "gw-2", follow=True)
    renewal = await queue.renew(0, WORKER, "", LEASE_S, [quiet, streamed, watched])
    assert renewal.lost == {}
    assert renewal.watchers == {
        quiet.id: ("", False),
        streamed.id: (GATEWAY, False),
        watched.id: (f"{GATEWAY} gw-2", True),
    }


async def test_a_repeated_call_that_never_arrived_is_applied(
    queue: Store, gateway: ChannelSubscriber
) -> None:
    job = await lease(queue)
    await emit_token(queue, job, 1)
    assert await emit(queue, [output(job, 2)], again=True) == {}
    assert [e.seq for e in await log_entries(queue, job.id, 0)] == [1, 2]
    assert [frame[1] for frame in gateway.frames()] == [1, 2]


async def test_a_step_that_comes_twice_with_one_job_less_is_read_once(
    queue: Store, gateway: ChannelSubscriber
) -> None:
    """The reply was lost, then a job was lost; the call is repeated without that job."""
    for _ in range(2):
        await submit(queue)
    on, gone = await claim(queue)
    await emit(queue, [output(gone, 1), output(on, 1)])
    await emit(queue, [output(on, 1)], again=True)
    await emit_token(queue, on, 2, "y")
    assert [(e.seq, e.items, e.lost) for e in await log_entries(queue, on.id, 0)] == [
        (1, (b"x",), False),
        (2, (b"y",), False),
    ]
    await queue.cancel(on.id, TENANT)
    assert [e.seq for e in await log_entries(queue, on.id, 0)] == [1, 2, 3]


async def test_two_gateways_receive_the_frames_of_one_job(
    queue: Store, gateway: ChannelSubscriber, other_gateway: ChannelSubscriber
) -> None:
    job = await lease(queue)
    await queue.watch(job.id, "gw-2", follow=True)
    await emit_token(queue, job, 1)
    assert gateway.frames() == other_gateway.frames() != []


async def test_a_gateway_receives_only_the_jobs_that_it_watches(
    queue: Store, gateway: ChannelSubscriber
) -> None:
    await submit(queue)
    await submit(queue, gateway="")
    listened, not_listened = await claim(queue)
    await emit(queue, [output(not_listened, 1), output(listened, 1)])
    assert [frame[0].decode() for frame in gateway.frames()] == [listened.id]
    assert [e.seq for e in await log_entries(queue, not_listened.id, 0)] == [1]


async def test_deltas_of_an_answer_that_is_not_streamed_go_to_watchers_only(
    queue: Store, gateway: ChannelSubscriber
) -> None:
    job = await lease(queue, stream=False)
    await emit_token(queue, job, 1)
    assert gateway.frames() == []
    await queue.watch(job.id, GATEWAY, follow=True)
    await emit_token(queue, job, 2)
    ((_, seq, kind, journal, payload),) = gateway.frames()
    assert (seq, kind, payload) == (2, FrameKind.DELTAS, None)
    assert read_journal(journal) == [Delta(0, 0, (2,), "x")]
    assert [e.seq for e in await log_entries(queue, job.id, 0)] == [1, 2]


@pytest.mark.parametrize("size", [0, 1, 31, 32, 255, 256, 65_535, 65_536, 1_000_000])
async def test_bytes_of_any_size_are_read_as_they_were_written(
    queue: Store, gateway: ChannelSubscriber, size: int
) -> None:
    job = await lease(queue)
    chunk = (bytes(range(256)) * (size // 256 + 1))[:size]
    items, journal = ((size, 0), chunk, (0, size), chunk), ((0, 0, (size, 2), chunk),)
    words = entry_output(job, 1, items, journal)
    await emit(queue, [words])
    (from_the_steps,) = await log_entries(queue, job.id, 0)
    await emit(queue, [], log_flushes=[log_flush(words, 1)])
    (from_the_log,) = await log_entries(queue, job.id, 0)
    assert from_the_steps == from_the_log
    assert (from_the_log.items, from_the_log.journal) == (items, journal)
    assert gateway.frames() == [(job.id.encode(), 1, FrameKind.CHUNK, journal, items)]


async def test_encoded_chunks_are_decoded_from_the_log_and_from_the_frames(
    queue: Store, gateway: ChannelSubscriber
) -> None:
    job = await lease(queue)
    chunks = [b'data: {"id": "cmpl-1", "text": "%s"}\n\n' % text for text in (b"a", b"b", b"c")]
    encoder = DeltaEncoder()
    for seq, chunk in enumerate(chunks, 1):
        items = encoder.encode([chunk])
        journal = make_journal([(0, 0, (seq,), chunk.decode()[-5])], items)
        assert await emit(queue, [entry_output(job, seq, items, journal)]) == {}
    entries, frames = await log_entries(queue, job.id, 0), gateway.frames()
    assert entries[2].items == (b"c",)
    assert read_journal(entries[2].journal, entries[2].items) == [Delta(0, 0, (3,), "c")]
    for steps in ([entry.items for entry in entries], [frame[4] for frame in frames]):
        decoder = DeltaDecoder()
        assert [decoder.decode(items) for items in steps] == chunks


async def test_a_step_of_a_stream_without_a_chunk_is_counted(
    queue: Store, gateway: ChannelSubscriber
) -> None:
    job = await lease(queue)
    journal = make_journal([(0, 0, (1,), "")])
    assert await emit(queue, [entry_output(job, 1, None, journal)]) == {}
    assert gateway.frames() == [(job.id.encode(), 1, FrameKind.CHUNK, ((0, 0, (1,), b""),), None)]
    (entry,) = await log_entries(queue, job.id, 0)
    assert entry.items == ()
    assert read_journal(entry.journal) == [Delta(0, 0, (1,), "")]


async def test_a_number_that_is_too_high_is_kept_in_an_empty_log(queue: Store) -> None:
    job = await lease(queue)
    assert await emit_token(queue, job, 3) == {}
    assert [(e.seq, e.lost) for e in await log_entries(queue, job.id, 0)] == [
        (1, True),
        (2, True),
        (3, False),
    ]
    last = await queue.last_entry(job.id)
    assert last is not None
    assert (last.seq, last.items) == (3, (b"x",))


async def test_entries_behind_a_number_are_those_of_the_list(queue: Store) -> None:
    job = await lease(queue)
    for seq in range(1, 6):
        await emit_token(queue, job, seq, str(seq))
    for after in range(7):
        found = await log_entries(queue, job.id, after)
        assert [(e.seq, e.items) for e in found] == [
            (seq, (b"%d" % seq,)) for seq in range(after + 1, 6)
        ]


async def test_the_last_journal_and_the_result_are_one_message_for_watchers(
    queue: Store, gateway: ChannelSubscriber
) -> None:
    job = await lease(queue, stream=False)
    await queue.watch(job.id, GATEWAY, follow=True)
    whole = {"content_type": "application/json", "body": b"{}"}
    assert await emit(queue, [last_output(job, 1, **whole)]) == {}
    (message,) = gateway.messages()
    deltas, result = decode(message)
    assert deltas[1:3] == (1, FrameKind.DELTAS)
    assert read_journal(deltas[3]) == [Delta(0, 0, (1,), "last")]
    content = (200, b"application/json", b"{}")
    assert result == (job.id.encode(), 2, FrameKind.RESULT, 3, content)


async def test_a_gateway_that_waits_for_the_result_receives_only_that(
    queue: Store, gateway: ChannelSubscriber
) -> None:
    job = await lease(queue, stream=False)
    assert await emit(queue, [last_output(job, 1, body=b"{}")]) == {}
    assert [frame[1:3] for frame in gateway.frames()] == [(2, FrameKind.RESULT)]
    assert [e.seq for e in await log_entries(queue, job.id, 0)] == [1, 2]


async def test_a_repeated_call_applies_only_what_is_new(
    queue: Store, gateway: ChannelSubscriber
) -> None:
    """The output is stored already; nothing is published again."""
    job = await lease(queue)
    await emit_token(queue, job, 1, "last")
    gateway.frames()
    assert await emit(queue, [last_output(job, 1)], again=True) == {}
    assert [frame[1:3] for frame in gateway.frames()] == [(2, FrameKind.DONE)]
    entries = await log_entries(queue, job.id, 0)
    assert [(e.seq, e.items, e.end) for e in entries] == [
        (1, (b"last",), ""),
        (2, (), "completed"),
    ]


async def test_a_call_of_several_long_answers_is_taken(queue: Store) -> None:
    for _ in range(4):
        await submit(queue, stream=False)
    jobs = await claim(queue)
    bodies = {job.id: bytes([i]) * INLINE_RESULT_BYTES for i, job in enumerate(jobs)}
    step = [end_without_output(job, 1, answer(body=bodies[job.id])) for job in jobs]
    assert await emit(queue, step) == {}
    for job in jobs:
        ended = await queue.get(job.id)
        assert ended is not None
        assert ended.result == bodies[job.id]
