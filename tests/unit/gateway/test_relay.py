"""The relay: malformed messages, closed readers, jobs that could not be queued."""

from __future__ import annotations

import asyncio

import pytest
from gateway.core.log_event import ReadMode
from prometheus_client import CollectorRegistry

from gateway.core.relay import Relay
from shared.job.errors import RedisUnavailable, StreamReset
from shared.job.frames import FrameKind, encode
from tests.unit.gateway.reader_support import (
    JOB,
    LONG_S,
    SILENCE_S,
    Log,
    chunk,
    publish,
    seqs,
)


async def test_a_closed_reader_gets_no_frames(relay: Relay, registry: CollectorRegistry) -> None:
    one, two = relay.open(JOB, ReadMode.CHUNKS), relay.open(JOB, ReadMode.CHUNKS)
    relay.close(one)
    publish(relay, chunk(1))
    assert seqs(await two.next(LONG_S)) == [1]
    relay.close(two)
    publish(relay, chunk(2))
    assert registry.get_sample_value("flotilla_open_streams") == 0


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
