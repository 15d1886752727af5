"""The relay: messages are dispatched to readers, which are woken and delta_event of ended jobs."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from gateway.core.log_event import LogEvent, ReadMode
from gateway.core.reader import ReaderState
from gateway.core.relay import Relay
from shared.job.errors import RedisUnavailable, StreamReset
from shared.job.frames import FrameKind, encode
from tests.harness.waiting import eventually
from tests.unit.gateway.reader_support import (
    JOB,
    LONG_S,
    SILENCE_S,
    Log,
    chunk,
    publish,
    seqs,
    turns,
)


async def test_all_readers_of_a_job_and_no_others_get_its_frames(relay: Relay) -> None:
    mine, too = relay.open(JOB, ReadMode.CHUNKS), relay.open(JOB, ReadMode.CHUNKS)
    other = relay.open("job_001" + "0" * 24, ReadMode.CHUNKS)
    publish(relay, chunk(1))
    publish(relay, chunk(1, b"x"), job=other.job_id)
    publish(relay, chunk(1), job="job_of_nobody")
    assert await mine.next(LONG_S) == await too.next(LONG_S) == [LogEvent(1, 0, b"1")]
    assert await other.next(LONG_S) == [LogEvent(1, 0, b"x")]


async def test_a_closed_reader_gets_no_frames(relay: Relay, registry: CollectorRegistry) -> None:
    one, two = relay.open(JOB, ReadMode.CHUNKS), relay.open(JOB, ReadMode.CHUNKS)
    relay.close(one)
    publish(relay, chunk(1))
    assert seqs(await two.next(LONG_S)) == [1]
    relay.close(two)
    publish(relay, chunk(2))
    assert registry.get_sample_value("flotilla_open_streams") == 0


async def test_each_reader_is_woken_at_its_own_time(relay: Relay, log: Log) -> None:
    loop = asyncio.get_running_loop()

    async def silent_for(silence_s: float) -> float:
        began = loop.time()
        reader = relay.open(JOB, ReadMode.CHUNKS)
        assert await reader.next(silence_s) == []
        assert await reader.next(silence_s / 2) == []  # and again
        relay.close(reader)
        return loop.time() - began

    silences = (0.05, 0.02, LONG_S, 0.3, 0.02)
    waits = [asyncio.create_task(silent_for(silence_s)) for silence_s in silences]
    async with asyncio.timeout(LONG_S):
        for silence_s, wait in zip(silences, waits, strict=True):
            if silence_s < LONG_S:
                assert await wait >= 1.5 * silence_s - 0.01
    assert not waits[2].done()
    waits[2].cancel()


async def test_the_timer_stops_when_all_readers_are_closed(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    waiting = asyncio.create_task(reader.next(0.02))
    await turns()
    waiting.cancel()
    relay.close(reader)

    async def at_rest() -> bool:
        return relay._timer is None

    await eventually(at_rest, "the timer is stopped")


async def test_every_reader_resyncs_after_a_new_subscription(relay: Relay, log: Log) -> None:
    readers = [relay.open(JOB, ReadMode.CHUNKS) for _ in range(2)]
    log.write(b"1")
    relay._resync(range(1))  # as the subscription does when it is connected
    assert [seqs(await reader.next(LONG_S)) for reader in readers] == [[1], [1]]


MALFORMED_MESSAGES = [
    b"\xc1 nonsense",
    b"\x01",
    b"\x92\xbf" + JOB.encode() + b"\x01",  # ours, and not a whole frame
    b"\x97\xbf" + JOB.encode() + b"\x01\x01\x00\xc0\xc0\xc0",
    b"\x90",
    b"\x81\x01\x02",
    b"\xc0",
    b"\xa0",
]


@pytest.mark.parametrize("message", MALFORMED_MESSAGES)
async def test_a_malformed_message_is_counted_and_readers_read_the_log(
    relay: Relay, log: Log, registry: CollectorRegistry, message: bytes
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    log.write(b"1")
    relay._dispatch(message)
    assert [event.payload for event in await reader.next(LONG_S)] == [b"1"]
    counted = registry.get_sample_value("flotilla_malformed_values_total", {"kind": "frame"})
    assert counted == 1
    publish(relay, chunk(2))  # the relay goes on
    assert seqs(await reader.next(LONG_S)) == [2]


@pytest.mark.parametrize(
    "message", [b"\x93\x01\x02\x03", encode(JOB, 1, FrameKind.CHUNK, [b"1"])[:-1]]
)
async def test_a_frame_of_no_job_or_cut_short_is_skipped_and_found_by_the_next_one(
    relay: Relay, log: Log, message: bytes
) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    log.write(b"1", b"2")
    relay._dispatch(message)
    publish(relay, chunk(2))
    assert seqs(await reader.next(LONG_S)) == [1, 2]


async def test_malformed_messages_are_logged_rarely(
    relay: Relay, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    for message in MALFORMED_MESSAGES:
        relay._dispatch(message)
    assert len(caplog.records) == 1


async def test_a_writer_that_raises_fails_its_own_reader_only(
    relay: Relay, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def write(self, data: bytes) -> bool:
            raise RuntimeError("broken")

    reader = relay.open(JOB, ReadMode.CHUNKS)
    log.write(b"1")
    waiting = asyncio.create_task(reader.next(LONG_S, Broken()))
    await turns()
    publish(relay, chunk(1))
    with pytest.raises(RuntimeError, match="broken"):
        await waiting


async def test_readers_of_jobs_that_are_gone_or_ended_are_notified(relay: Relay, log: Log) -> None:
    gone, ended = relay.open(JOB, ReadMode.CHUNKS), relay.open(JOB[:-1] + "1", ReadMode.CHUNKS)
    relay._on_ended({gone.job_id: "gone"})
    with pytest.raises(StreamReset):
        await gone.next(5)
    log.write(end="failed")
    relay._on_ended({ended.job_id: "failed"})
    assert ended._state is ReaderState.BEHIND


async def test_a_job_that_is_not_queued_yet_is_not_polled_for(relay: Relay) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    reader.queued = asyncio.get_running_loop().create_future()
    assert not reader.awaits_end
    reader.queued.set_result(None)
    assert reader.awaits_end


async def test_a_job_that_was_not_queued_fails_with_the_error_of_that(
    relay: Relay, log: Log
) -> None:
    """Once this was 500 "The queue has lost this job": the reader was reading the log."""
    reader = relay.open(JOB, ReadMode.CHUNKS)
    reader.queued = asyncio.get_running_loop().create_future()

    def submit_fails() -> None:
        assert reader.queued is not None
        error = RedisUnavailable("no answer")
        reader.queued.set_exception(error)
        reader.fail(error)
        relay._on_ended({JOB: "gone"})

    log.while_reading = submit_fails
    assert await reader.next(SILENCE_S) == []
    with pytest.raises(RedisUnavailable):
        await reader.next(SILENCE_S)
    assert not reader.awaits_end


async def test_the_first_error_of_a_reader_counts(relay: Relay) -> None:
    reader = relay.open(JOB, ReadMode.CHUNKS)
    reader.fail(RedisUnavailable("no answer"))
    reader.fail(StreamReset("gone"))
    with pytest.raises(RedisUnavailable):
        await reader.next(LONG_S)
