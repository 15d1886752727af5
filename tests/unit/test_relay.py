"""The relay's readers: the log in order, once each, whatever pub/sub loses or repeats."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gateway import relay as module
from gateway.relay import Piece, Reader, Relay, Want
from shared.channel import FrameKind, encode
from shared.errors import RedisUnavailable, StreamReset
from shared.metrics import GatewayMetrics
from shared.redis import RedisConnectionError
from shared.token_log import Entry

JOB = "job_000" + "0" * 24
BUFFER = 100
LONG_S = 30.0
SHORT_S = 0.01
"""Nothing in these tests waits so long."""
SILENCE_S = 0.001


class Log:
    """The queue as far as a reader asks it; `ahead` is what the log holds."""

    def __init__(self) -> None:
        self.ahead: list[Entry] = []
        self.reads: list[int] = []
        self.broken: Exception | None = None
        self.while_reading = lambda: None

    def write(self, *chunks: bytes, end: str = "") -> None:
        for chunk in chunks:
            self.ahead.append(Entry(len(self.ahead) + 1, chunk, b"j" + chunk, ""))
        if end:
            self.ahead.append(Entry(len(self.ahead) + 1, b"", b"", end))

    async def entries(self, job_id: str, after: int, count: int | None = None) -> list[Entry]:
        assert job_id == JOB
        self.reads.append(after)
        found = [entry for entry in self.ahead if entry.seq > after]
        self.while_reading()
        if self.broken is not None:
            raise self.broken
        return found

    async def last_entry(self, job_id: str) -> Entry | None:
        assert job_id == JOB
        if self.broken is not None:
            raise self.broken
        return self.ahead[-1] if self.ahead else None


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def relay(log: Log, registry: CollectorRegistry) -> Relay:
    queue: Any = log
    return Relay(queue, "redis://nowhere", "gw", GatewayMetrics(registry), BUFFER)


def publish(relay: Relay, *frames: tuple[int, FrameKind, bytes], job: str = JOB) -> None:
    """One message with these frames arrives."""
    relay._hand_out(b"".join(encode(job, *frame) for frame in frames))


def chunk(seq: int, data: bytes = b"") -> tuple[int, FrameKind, bytes]:
    return seq, FrameKind.CHUNK, data or b"%d" % seq


def seqs(pieces: list[Piece]) -> list[int]:
    return [piece.seq for piece in pieces]


async def test_frames_are_handed_out_in_their_order_without_a_look_at_the_log(
    relay: Relay, log: Log
) -> None:
    reader = relay.open(JOB, Want.CHUNKS)
    publish(relay, chunk(1), chunk(2))
    publish(relay, chunk(3))
    pieces = await reader.next(LONG_S)
    assert pieces == [Piece(n, FrameKind.CHUNK, b"%d" % n) for n in (1, 2, 3)]
    publish(relay, (4, FrameKind.DONE, b""))
    (end,) = await reader.next(LONG_S)
    assert end.last
    assert log.reads == []


async def test_next_waits_for_a_frame(relay: Relay) -> None:
    reader = relay.open(JOB, Want.CHUNKS)
    waiting = asyncio.create_task(reader.next(LONG_S))
    await asyncio.sleep(0)
    assert not waiting.done()
    publish(relay, chunk(1))
    assert seqs(await waiting) == [1]


async def test_every_reader_of_a_job_and_no_other_gets_its_frames(relay: Relay) -> None:
    mine, too = relay.open(JOB, Want.CHUNKS), relay.open(JOB, Want.CHUNKS)
    other = relay.open("job_001" + "0" * 24, Want.CHUNKS)
    publish(relay, chunk(1))
    publish(relay, chunk(1, b"x"), job=other.job_id)
    publish(relay, chunk(1), job="job_of_nobody")
    assert await mine.next(LONG_S) == await too.next(LONG_S) == [Piece(1, 0, b"1")]
    assert await other.next(LONG_S) == [Piece(1, 0, b"x")]


async def test_a_closed_reader_is_forgotten(relay: Relay, registry: CollectorRegistry) -> None:
    one, two = relay.open(JOB, Want.CHUNKS), relay.open(JOB, Want.CHUNKS)
    relay.close(one)
    publish(relay, chunk(1))
    assert seqs(await two.next(LONG_S)) == [1]
    relay.close(two)
    publish(relay, chunk(2))
    assert registry.get_sample_value("flotilla_open_streams") == 0


async def test_a_gap_is_filled_from_the_log(
    relay: Relay, log: Log, registry: CollectorRegistry
) -> None:
    reader = relay.open(JOB, Want.CHUNKS)
    publish(relay, chunk(1))
    assert seqs(await reader.next(LONG_S)) == [1]
    log.write(b"1", b"2", b"3", b"4")
    publish(relay, chunk(3), chunk(4))
    pieces = await reader.next(LONG_S)
    assert pieces == [Piece(n, FrameKind.CHUNK, b"%d" % n) for n in (2, 3, 4)]
    assert log.reads == [1]
    assert registry.get_sample_value("flotilla_stream_gaps_total") == 1


async def test_what_came_before_the_gap_is_handed_out_too(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, Want.CHUNKS)
    log.write(b"1", b"2", b"3")
    publish(relay, chunk(1), chunk(3))
    assert seqs(await reader.next(LONG_S)) == [1, 2, 3]


async def test_the_last_frame_is_lost_and_the_log_has_the_end(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, Want.CHUNKS)
    log.write(b"1", b"2", end="completed")
    publish(relay, chunk(1), (3, FrameKind.DONE, b""))
    pieces = await reader.next(LONG_S)
    assert seqs(pieces) == [1, 2, 3]
    assert [piece.last for piece in pieces] == [False, False, True]


async def test_a_repeated_frame_is_dropped(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, Want.CHUNKS)
    publish(relay, chunk(1), chunk(1), chunk(2), chunk(1), chunk(2), chunk(3))
    assert seqs(await reader.next(LONG_S)) == [1, 2, 3]
    publish(relay, chunk(3))
    assert log.reads == []
    publish(relay, chunk(4))
    assert seqs(await reader.next(LONG_S)) == [4]


async def test_a_repeated_frame_is_no_news(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, Want.CHUNKS)
    log.write(b"1")
    publish(relay, chunk(1))
    assert seqs(await reader.next(LONG_S)) == [1]
    waiting = asyncio.create_task(reader.next(LONG_S))
    for _ in range(3):
        publish(relay, chunk(1))
        await asyncio.sleep(0)
    assert not waiting.done()
    publish(relay, chunk(2))
    assert seqs(await waiting) == [2]


async def test_the_start_has_no_number_and_is_handed_out_where_it_comes(relay: Relay) -> None:
    reader = relay.open(JOB, Want.CHUNKS)
    publish(relay, (0, FrameKind.STARTED, b"w-1"), chunk(1))
    assert seqs(await reader.next(LONG_S)) == [0, 1]


async def test_a_reader_goes_on_behind_a_number(relay: Relay, log: Log) -> None:
    log.write(b"1", b"2", b"3")
    reader = relay.open(JOB, Want.CHUNKS, after=2)
    publish(relay, chunk(2), chunk(3))
    assert seqs(await reader.next(LONG_S)) == [3]


async def test_a_slow_client_is_not_kept_in_memory_and_catches_up(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, Want.CHUNKS)
    parts = [b"x" * 40] * 20
    log.write(*parts)
    for seq, part in enumerate(parts, 1):
        publish(relay, chunk(seq, part))
        assert sum(len(piece.payload) for piece in reader._pieces) <= BUFFER
    assert seqs(await reader.next(LONG_S)) == list(range(1, 21))
    log.write(b"more")
    publish(relay, chunk(21, b"more"))
    assert seqs(await reader.next(LONG_S)) == [21]
    assert log.reads == [0]


async def test_a_frame_that_comes_while_the_log_is_read_is_handed_out_once(
    relay: Relay, log: Log
) -> None:
    reader = relay.open(JOB, Want.CHUNKS)
    log.write(b"1", b"2")
    log.while_reading = lambda: publish(relay, chunk(2), chunk(3))
    reader.fall_behind()
    assert seqs(await reader.next(LONG_S)) == [1, 2, 3]


async def test_who_falls_behind_while_the_log_is_read_reads_again(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, Want.CHUNKS)
    log.write(b"1")

    def lose_a_frame() -> None:
        log.while_reading = lambda: None
        log.write(b"2", b"3")
        publish(relay, chunk(3))

    log.while_reading = lose_a_frame
    reader.fall_behind()
    assert seqs(await reader.next(LONG_S)) == [1, 2, 3]
    assert log.reads == [0, 1]


async def test_silence_makes_it_look_at_the_log(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, Want.CHUNKS)
    assert await reader.next(SILENCE_S) == []
    log.write(b"1")
    assert seqs(await reader.next(SILENCE_S)) == [1]
    log.write(end="completed")
    (end,) = await reader.next(SILENCE_S)
    assert (end.seq, end.kind, end.last) == (2, FrameKind.ENDED, True)
    assert log.reads == [0, 0, 1]


async def test_a_new_subscription_makes_every_reader_look(relay: Relay, log: Log) -> None:
    readers = [relay.open(JOB, Want.CHUNKS) for _ in range(2)]
    log.write(b"1")
    relay._connect()
    assert relay.connected.is_set()
    assert [seqs(await reader.next(LONG_S)) for reader in readers] == [[1], [1]]


async def test_a_client_that_leaves_ends_the_wait(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, Want.CHUNKS)
    waiting = asyncio.create_task(reader.next(LONG_S))
    await asyncio.sleep(0)
    reader.wake()
    assert await waiting == []
    assert log.reads == []


# --- what a reader wants ---


async def test_deltas_come_from_frames_and_from_the_journal(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, Want.DELTAS)
    publish(relay, (1, FrameKind.DELTAS, b"j1"))
    assert await reader.next(LONG_S) == [Piece(1, FrameKind.DELTAS, b"j1")]
    log.write(b"1", b"2")
    reader.fall_behind()
    assert await reader.next(LONG_S) == [Piece(2, FrameKind.DELTAS, b"j2")]


@pytest.mark.parametrize("kind", [FrameKind.RESULT, FrameKind.DONE, FrameKind.ENDED])
async def test_who_wants_the_end_takes_it_whatever_its_number(
    relay: Relay, log: Log, kind: FrameKind
) -> None:
    reader = relay.open(JOB, Want.END)
    publish(relay, (2, FrameKind.DELTAS, b"j"), (9, kind, b"r"))
    assert await reader.next(LONG_S) == [Piece(9, kind, b"r")]
    assert log.reads == []


async def test_who_wants_the_end_finds_it_in_the_log(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, Want.END)
    log.write(b"1", b"2")
    assert await reader.next(SILENCE_S) == []
    log.write(end="failed")
    assert await reader.next(SILENCE_S) == [Piece(3, FrameKind.ENDED, b"")]
    assert log.reads == []


# --- what goes wrong ---


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param([], id="the log is gone"),
        pytest.param([Entry(1, b"1", b"", "")], id="the log has gone back"),
        pytest.param([Entry(4, b"4", b"", "")], id="the log has a hole"),
    ],
)
async def test_a_log_that_does_not_hold_what_was_handed_out_ends_the_stream(
    relay: Relay, log: Log, lost: list[Entry]
) -> None:
    reader = relay.open(JOB, Want.CHUNKS)
    publish(relay, chunk(1), chunk(2))
    await reader.next(LONG_S)
    log.ahead = lost
    with pytest.raises(StreamReset):
        await reader.next(SILENCE_S)


async def test_no_news_in_a_log_that_is_there_is_no_loss(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, Want.CHUNKS)
    log.write(b"1", b"2")
    reader.fall_behind()
    await reader.next(LONG_S)
    assert await reader.next(SILENCE_S) == []


@pytest.mark.parametrize("want", Want)
@pytest.mark.parametrize("error", [RedisConnectionError("away"), OSError("away")])
async def test_an_outage_is_borne_for_a_while_and_then_told(
    relay: Relay, log: Log, monkeypatch: pytest.MonkeyPatch, want: Want, error: Exception
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    reader = relay.open(JOB, want)
    log.broken = error
    for _ in range(3):
        assert await reader.next(SILENCE_S) == []
        clock.now += module._PATIENCE_S / 3
    assert await reader.next(SILENCE_S) == []
    clock.now += 1
    with pytest.raises(RedisUnavailable):
        await reader.next(SILENCE_S)


async def test_an_outage_that_ends_is_forgotten(
    relay: Relay, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    reader = relay.open(JOB, Want.CHUNKS)
    for _ in range(3):
        log.broken = RedisConnectionError("away")
        assert await reader.next(SILENCE_S) == []
        clock.now += module._PATIENCE_S - 1
        log.broken = None
        log.write(b"x")
        assert len(await reader.next(SILENCE_S)) == 1


async def test_what_could_not_be_read_is_read_at_the_next_look(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, Want.CHUNKS)
    log.write(b"1", b"2")
    log.broken = RedisConnectionError("away")
    reader.fall_behind()
    assert await reader.next(SHORT_S) == []
    log.broken = None
    reader.fall_behind()
    assert seqs(await reader.next(LONG_S)) == [1, 2]


async def test_frames_that_come_in_an_outage_are_not_lost(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, Want.CHUNKS)
    log.broken = RedisConnectionError("away")
    publish(relay, chunk(1), chunk(3))
    assert seqs(await reader.next(LONG_S)) == [1]
    log.write(b"1", b"2", b"3", b"4")
    log.broken = None
    publish(relay, chunk(4))
    assert seqs(await reader.next(LONG_S)) == [2, 3, 4]


async def test_whatever_is_lost_repeated_or_late_the_client_gets_the_log(
    relay: Relay, log: Log
) -> None:
    for lost in range(1 << 6):
        log.ahead = []
        reader: Reader = relay.open(JOB, Want.CHUNKS)
        got: list[int] = []
        for seq in range(1, 7):
            log.write(b"%d" % seq)
            if not lost >> (seq - 1) & 1:
                publish(relay, chunk(seq), chunk(max(1, seq - 2)))
                got += seqs(await reader.next(LONG_S))
        log.write(end="completed")
        reader.fall_behind()
        got += seqs(await reader.next(LONG_S))
        assert got == list(range(1, 8)), f"lost: {lost:06b}"
        relay.close(reader)


async def test_a_hole_in_the_log_ends_the_stream(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, Want.CHUNKS)
    log.write(b"1", b"2", b"3", b"4")
    del log.ahead[2]
    reader.fall_behind()
    with pytest.raises(StreamReset):
        await reader.next(5)


@pytest.mark.parametrize("message", [b"\xc1 nonsense", b"\x01", b"\x93\x01\x02\x03"])
async def test_a_message_that_is_no_frame_sends_readers_to_the_log(
    relay: Relay, log: Log, message: bytes
) -> None:
    reader = relay.open(JOB, Want.CHUNKS)
    log.write(b"1")
    relay._hand_out(message)
    assert [piece.payload for piece in await reader.next(5)] == [b"1"]
