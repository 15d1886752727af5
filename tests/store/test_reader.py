"""A client's place in a log: each entry once and in order, or `stream_reset`, never silence."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gateway.core import reader as reader_module
from gateway.core import relay as relay_module
from gateway.core.reader import LogEvent, Reader, ReadMode
from gateway.core.relay import Relay
from shared.job.errors import RedisUnavailable, StreamReset
from shared.job.log import Delta, Prompt, make_journal
from shared.job.states import JobState
from shared.platform.metrics.gateway import GatewayMetrics
from shared.store.errors import StoreTimeout, StoreUnavailable
from shared.store.servers import Servers
from tests.harness.waiting import eventually
from tests.store.reader_support import (
    JOB,
    LONG_S,
    SILENCE_S,
    Client,
    Log,
    Subscription,
    frame_of,
    output,
    publish,
    read_to_end,
    stream,
    turns,
)

CHUNKS, DELTAS, END = ReadMode.CHUNKS, ReadMode.DELTAS, ReadMode.END
OTHER = "job_000" + "1" * 24


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
async def relay(
    log: Log, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Relay]:
    """One that is subscribed."""
    monkeypatch.setattr(relay_module, "Subscription", Subscription)
    monkeypatch.setattr(relay_module, "_RETRY_S", 0.0)
    monkeypatch.setattr(reader_module, "_RETRY_S", 0.0001)
    queue: Any = log
    relay = Relay(queue, Servers("redis://nowhere"), "gw", GatewayMetrics(registry))
    running = asyncio.create_task(relay.run())
    subscription_of(relay).connect()
    yield relay
    running.cancel()


def subscription_of(relay: Relay) -> Subscription:
    subscription = relay._groups[0].subscription
    assert isinstance(subscription, Subscription)
    return subscription


def new_reader(relay: Relay, mode: ReadMode = CHUNKS) -> Reader:
    return relay.open(JOB, mode, is_new=True)


async def reader_of(relay: Relay, log: Log, *words: str) -> Reader:
    """A reader that has had the claim and a step for each word."""
    reader = new_reader(relay)
    publish(relay, log.mark("claimed"))
    for chunk in stream(*words):
        publish(relay, log.write(chunk))
    if words:
        assert output(await reader.next(LONG_S)) == b"".join(stream(*words))
    return reader


async def tried(log: Log, times: int) -> bool:
    return len(log.reads) >= times


# --- live ---


async def test_chunks_go_straight_to_the_client(relay: Relay, log: Log) -> None:
    reader, client = new_reader(relay), Client()
    reading = asyncio.create_task(reader.next(LONG_S, client))
    await turns()
    words = stream(*"abcdefghij")
    publish(relay, log.mark("claimed"), *(log.write(word) for word in words))
    assert client.taken == words
    client.full = True
    publish(relay, log.write(*stream("k")))
    assert output(await reading) == stream("k")[0]
    assert not log.reads


async def test_a_step_may_have_several_chunks_or_none(
    relay: Relay, log: Log, registry: CollectorRegistry
) -> None:
    reader = await reader_of(relay, log)
    publish(relay, log.write(*stream("a", "b")), log.write(), log.write(*stream("c")))
    events = await reader.next(LONG_S)
    assert [event.output for event in events] == [b"".join(stream("a", "b")), *stream("c")]
    assert not log.reads
    assert registry.get_sample_value("flotilla_stream_gaps_total") == 0


async def test_the_last_chunk_comes_with_the_end(relay: Relay, log: Log) -> None:
    reader, client = await reader_of(relay, log, "a"), Client()
    reading = asyncio.create_task(reader.next(LONG_S, client))
    await turns()
    publish(relay, log.end(*stream("b")))
    [event] = await reading
    assert event == LogEvent(3, "completed", stream("b")[0], (7, 1))
    assert event.last
    assert not client.taken


async def test_two_readers_do_not_share_a_template(relay: Relay, log: Log) -> None:
    early = await reader_of(relay, log, *"abc")
    late = relay.open(JOB, CHUNKS)
    publish(relay, log.write(*stream("d")))
    assert output(await early.next(LONG_S)) == stream("d")[0]
    assert output(await late.next(LONG_S)) == b"".join(stream(*"abcd"))


async def test_deltas_are_the_same_from_a_frame_and_from_the_log(relay: Relay, log: Log) -> None:
    records: list[Delta | Prompt] = [Prompt(0, 5), Delta(0, 0, (1, 2), "ü")]
    records += [Delta(0, 1, (), ""), Delta(1, 0, (3,), "x")]
    early = relay.open(JOB, DELTAS, is_new=True)
    publish(relay, log.mark("claimed"))
    publish(relay, log._append(make_journal(records), ()), log._append(7, (b"a",)))
    late = relay.open(JOB, DELTAS)
    assert (
        await early.next(LONG_S)
        == await late.next(LONG_S)
        == [
            LogEvent(2, "", records),
            LogEvent(3, "", [Delta(0, 0, (7,), "a")]),
        ]
    )


async def test_events_are_delivered_to_those_who_want_them(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, DELTAS, with_events=True)
    entries = [log.mark("claimed", b"w-1"), log.mark("requeued", b"lost"), log.mark("claimed")]
    publish(relay, *entries)
    events = await reader.next(LONG_S)
    assert [event.event for event in events] == ["claimed", "requeued", "claimed"]


async def test_a_reader_of_the_end_takes_it_with_any_number(relay: Relay, log: Log) -> None:
    log.mark("claimed")
    reader = relay.open(JOB, END)
    await turns()
    publish(relay, log.mark("requeued"), log.mark("claimed"), log.write_text("a"))
    log.write_text("b")
    publish(relay, log.end(streamed=0), result=(200, b"json", b"{}"))
    [event] = await reader.next(LONG_S)
    assert (event.event, *event.details) == ("completed", 7, 0, 200, b"json", b"{}")
    assert not log.reads


async def test_a_reader_of_the_end_finds_it_in_the_record(relay: Relay, log: Log) -> None:
    log.end(state=JobState.CANCELLED)
    reader = relay.open(JOB, END)
    assert await reader.next(LONG_S) == [LogEvent(0, "cancelled", b"")]


# --- frames that are lost, late, or of another attempt ---


async def test_frames_of_an_earlier_attempt_are_ignored(relay: Relay, log: Log) -> None:
    reader = await reader_of(relay, log, "a")
    late = log.write(*stream("b"))
    log.lose(1)
    publish(relay, log.mark("requeued"), log.mark("claimed"), log.write(*stream("c")), late)
    assert output(await reader.next(LONG_S)) == stream("c")[0]
    assert not log.reads


async def test_a_lost_frame_is_read_from_the_log(
    relay: Relay, log: Log, registry: CollectorRegistry
) -> None:
    reader = await reader_of(relay, log, "a")
    log.write(*stream("b"))
    publish(relay, log.write(*stream("c")))
    assert output(await reader.next(LONG_S)) == b"".join(stream("b", "c"))
    assert registry.get_sample_value("flotilla_stream_gaps_total") == 1
    log.mark("requeued")
    log.mark("claimed")
    publish(relay, log.write(*stream("d")))  # a step without the event before it
    assert output(await reader.next(LONG_S)) == stream("d")[0]


async def test_frames_that_come_while_a_page_is_read_follow_it(relay: Relay, log: Log) -> None:
    reader = await reader_of(relay, log, "a")
    log.write(*stream("b"))
    publish(relay, log.write(*stream("c")))

    def write() -> None:
        publish(relay, log.write(*stream("d")))

    log.before_reply = write
    assert output(await reader.next(LONG_S)) == b"".join(stream("b", "c", "d"))
    assert len(log.reads) == 1


@pytest.mark.parametrize("mode", [CHUNKS, DELTAS, END])
async def test_a_reader_without_frames_looks_at_its_position(
    relay: Relay, log: Log, mode: ReadMode
) -> None:
    """Frames, the last one among them, are lost in silence."""
    reader = new_reader(relay, mode)
    log.mark("claimed")
    last = log.end()
    events = await reader.next(LONG_S)
    assert events[-1].event == last.event
    assert log.looks == [1]


async def test_looks_become_rare(relay: Relay, log: Log) -> None:
    reader = await reader_of(relay, log, "a")
    reader.is_to_be_looked_at(1000.0)
    looks = [now for now in range(1000, 1040) if reader.is_to_be_looked_at(float(now))]
    assert looks == [1001, 1003, 1007, 1015, 1025, 1035]
    publish(relay, log.write(*stream("b")))
    assert not reader.is_to_be_looked_at(1040.0)
    assert reader.is_to_be_looked_at(1041.0)
    reader.queued = asyncio.get_running_loop().create_future()
    assert not reader.is_to_be_looked_at(2000.0)


async def test_a_position_that_came_too_late_is_no_loss(relay: Relay, log: Log) -> None:
    reader = await reader_of(relay, log, "a")
    reader.is_to_be_looked_at(1000.0)
    assert reader.is_to_be_looked_at(1001.0)
    old = log.entries[-1].position
    publish(relay, log.write(*stream("b")))
    reader.on_position(old)
    assert not reader.is_unwatched


# --- clients that come back ---


async def test_a_client_that_comes_back_gets_the_rest(relay: Relay, log: Log) -> None:
    log.mark("claimed")
    words = stream(*(f"word {n}" for n in range(100)))
    for word in words:
        log.write(word)
    reader = relay.open(JOB, CHUNKS, after=61)  # the claim has number 1
    got: list[LogEvent] = []
    while not reader.is_current:
        got += await reader.next(LONG_S)
    assert output(got) == b"".join(words[60:])
    publish(relay, log.write(*stream("next")))
    assert output(await reader.next(LONG_S)) == stream("next")[0]


@pytest.mark.parametrize("mode", [CHUNKS, DELTAS])
@pytest.mark.parametrize("end", [True, False])
async def test_a_client_that_has_more_than_the_log_is_told(
    relay: Relay, log: Log, mode: ReadMode, end: bool
) -> None:
    log.mark("claimed")
    log.write_text("a")
    if end:
        log.end()
    reader = relay.open(JOB, mode, after=4)
    with pytest.raises(StreamReset):
        await reader.next(LONG_S)


async def test_a_job_that_waits_has_no_log_yet(relay: Relay, log: Log) -> None:
    reader = relay.open(JOB, CHUNKS)
    await turns()
    assert reader.is_current
    publish(relay, log.mark("claimed"), log.write(*stream("a")))
    assert output(await reader.next(LONG_S)) == stream("a")[0]
    assert not log.reads
    with pytest.raises(StreamReset):
        await relay.open(OTHER, CHUNKS).next(LONG_S)


# --- answers that begin anew ---


@pytest.mark.parametrize("mode", [CHUNKS, DELTAS])
async def test_an_answer_begins_anew_only_for_those_who_had_nothing(
    relay: Relay, log: Log, mode: ReadMode
) -> None:
    had = new_reader(relay, mode)
    publish(relay, log.mark("claimed"))
    publish(relay, log.write(b"a") if mode is CHUNKS else log.write_text("a"))
    await had.next(LONG_S)
    log.mark("requeued")
    log.mark("claimed")
    log.mark("restarted")
    second = log.write(b"b") if mode is CHUNKS else log.write_text("b")
    publish(relay, second)
    number = second.position.number
    with pytest.raises(StreamReset):
        await read_to_end(had, Client(), lambda: 0)
    with pytest.raises(StreamReset):
        await relay.open(JOB, mode, after=2).next(LONG_S)
    for after in (0, 1, 5):
        reader = relay.open(JOB, mode, after=after)
        assert [event.number for event in await reader.next(LONG_S)] == [number]


# --- losses ---


@pytest.mark.parametrize("others", [0, 1, 5])
async def test_a_log_that_lacks_what_was_delivered_is_not_continued(
    relay: Relay, log: Log, others: int
) -> None:
    reader = await reader_of(relay, log, *"abc")
    log.lose(2)
    log.mark("requeued")
    for _ in range(others):
        log.write(*stream("x"))
    subscription_of(relay).connect()
    with pytest.raises(StreamReset):
        await reader.next(LONG_S)


async def test_a_worker_sends_what_redis_has_lost_again(relay: Relay, log: Log) -> None:
    reader = await reader_of(relay, log, *"abc")
    kept = log.entries[-2:]
    log.lose(2)
    subscription_of(relay).connect()
    reading = asyncio.create_task(reader.next(LONG_S))
    await eventually(lambda: tried(log, 3), "the reader tries again")
    log.entries += kept
    log.write(*stream("d"))
    assert output(await reading) == stream("d")[0]


async def test_a_log_that_is_gone_is_an_error(relay: Relay, log: Log) -> None:
    new, old = new_reader(relay), await reader_of(relay, log, "a")
    log.entries.clear()
    log.state = JobState.COMPLETED
    subscription_of(relay).connect()
    for reader in (new, old):
        with pytest.raises(StreamReset):
            await read_to_end(reader, Client(), lambda: 0)


async def test_a_job_that_is_gone_is_an_error(relay: Relay, log: Log) -> None:
    readers = [new_reader(relay, mode) for mode in ReadMode]
    log.is_gone = True
    subscription_of(relay).connect()
    for reader in readers:
        with pytest.raises(StreamReset):
            await reader.next(LONG_S)


@pytest.mark.parametrize("mode", ReadMode)
@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreTimeout("away")])
async def test_an_outage_becomes_an_error_only_after_a_while(
    relay: Relay, log: Log, mode: ReadMode, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = new_reader(relay, mode)
    log.broken = error
    subscription_of(relay).connect()
    for _ in range(3):
        assert await reader.next(SILENCE_S) == []
    monkeypatch.setattr(reader_module, "_REDIS_PATIENCE_S", 0.0)
    with pytest.raises(RedisUnavailable):
        await reader.next(LONG_S)


async def test_an_outage_during_a_page_is_survived(relay: Relay, log: Log) -> None:
    reader = await reader_of(relay, log, "a")
    log.broken = StoreUnavailable("away")
    log.write(*stream("b"))
    publish(relay, log.write(*stream("c")))
    assert await reader.next(SILENCE_S) == []
    log.broken = None
    assert output(await reader.next(LONG_S)) == b"".join(stream("b", "c"))


MALFORMED: list[Any] = [b"bytes", 7, [7], [None], [[1]], [[1, 2, 3]], [[b"a", b"b"]], {b"a": b"b"}]


@pytest.mark.parametrize("items", MALFORMED)
async def test_malformed_chunks_end_their_own_answer_only(
    relay: Relay, log: Log, registry: CollectorRegistry, items: Any
) -> None:
    reader, other = await reader_of(relay, log, "a"), relay.open(OTHER, CHUNKS, is_new=True)
    others = Log()
    frames = [others.mark("claimed"), others.write(b"x")]
    bad = frame_of(log._append(None, items))
    relay.dispatch(bad + b"".join(frame_of(entry, job_id=OTHER) for entry in frames))
    with pytest.raises(StreamReset):
        await reader.next(LONG_S)
    assert output(await other.next(LONG_S)) == b"x"
    assert registry.get_sample_value("flotilla_malformed_values_total", {"kind": "frame"}) == 1


@pytest.mark.parametrize(
    "message", [b"\xc1 x", b"\x01", b"\x90", b"\x81\x01\x02", b"\xc0", b"\x96"]
)
async def test_after_a_malformed_message_readers_read_the_log(
    relay: Relay, log: Log, message: bytes
) -> None:
    reader = await reader_of(relay, log, "a")
    log.write(*stream("b"))
    relay.dispatch(message)
    publish(relay, log.write(*stream("c")))
    assert output(await reader.next(LONG_S)) == b"".join(stream("b", "c"))


async def test_the_first_error_counts_and_ends_the_answer(relay: Relay, log: Log) -> None:
    reader, client = await reader_of(relay, log), Client()
    reader.fail(RedisUnavailable("no answer"))
    reader.fail(StreamReset("gone"))
    publish(relay, log.write(b"a"))
    with pytest.raises(RedisUnavailable):
        await reader.next(LONG_S, client)
    assert not client.taken


# --- slow clients ---


async def test_a_slow_client_costs_a_page(relay: Relay, log: Log) -> None:
    reader, client = await reader_of(relay, log, "a"), Client()
    client.full = True
    chunks = stream(*("x" * 1000 for _ in range(3000)))
    sizes: list[int] = []
    got = b""
    for first in range(0, len(chunks), 100):
        publish(relay, *(log.write(chunk) for chunk in chunks[first : first + 100]))
        if first % 600 == 0:
            events = await reader.next(LONG_S, client)
            sizes.append(len(output(events)))
            got += output(events)
    log.end()
    while not events[-1].last:
        events = await reader.next(LONG_S, client)
        sizes.append(len(output(events)))
        got += output(events)
    assert got == b"".join(chunks)
    assert max(sizes) < 3 * reader_module._PAGE_BYTES
    assert len(log.reads) < 150


async def test_who_waits_for_no_time_lets_others_run(relay: Relay, log: Log) -> None:
    """Once a stream that was taken up again held all others."""
    log.mark("claimed")
    log.write(*stream("a"))
    reader = relay.open(JOB, CHUNKS)
    events: list[LogEvent] = []
    async with asyncio.timeout(LONG_S):
        while not events:
            events = await reader.next(0)


# --- the relay ---


async def test_a_closed_reader_gets_no_frames(
    relay: Relay, log: Log, registry: CollectorRegistry
) -> None:
    one, two = await reader_of(relay, log), new_reader(relay)
    relay.close(one)
    publish(relay, *log.entries, log.write(b"a"))
    assert output(await two.next(LONG_S)) == b"a"
    relay.close(two)
    publish(relay, log.write(b"b"))
    assert registry.get_sample_value("flotilla_open_streams") == 0


async def test_jobs_are_watched_once_subscribed_and_queued(relay: Relay, log: Log) -> None:
    subscription_of(relay).connected.clear()
    log.mark("claimed")
    reader, new = relay.open(JOB, CHUNKS), new_reader(relay)
    new.queued = asyncio.get_running_loop().create_future()
    await turns()
    assert log.watches == 0
    subscription_of(relay).connect()
    await turns()
    assert log.watches == 1
    assert await reader.next(SILENCE_S) == []
    assert reader.is_current
    new.queued.set_result(None)
    await turns()
    assert log.watches == 2


async def test_a_job_that_is_left_by_all_is_watched_no_more(relay: Relay, log: Log) -> None:
    one, two, three = (new_reader(relay) for _ in range(3))
    relay.close(one, leave=True)
    relay.close(two)
    log.broken = StoreUnavailable("away")
    relay.close(three, leave=True)
    await turns()
    assert not log.unwatched
    log.broken = None
    await relay.drain()
    assert set(log.unwatched) == {JOB}
    refused = new_reader(relay)
    refused.queued = asyncio.get_running_loop().create_future()
    log.unwatched.clear()
    relay.close(refused, leave=True)
    refused.queued.set_exception(StreamReset("refused"))
    await turns()
    assert not log.unwatched


# --- at random ---


@pytest.mark.parametrize("mode", [CHUNKS, DELTAS])
@pytest.mark.seeds(60)
async def test_clients_get_the_log_or_are_told(
    relay: Relay, log: Log, mode: ReadMode, seed: int
) -> None:
    """Frames are lost, repeated and late; workers and connections are lost, Redis its last writes;
    clients are slow, and come back. Each gets the log once and in order, or an error if and only if
    Redis has lost what it had got."""
    chance = random.Random(seed)
    got: dict[Reader, list[LogEvent]] = {}
    clients: dict[Reader, Client] = {}
    reset: set[Reader] = set()
    must_reset: set[Reader] = set()
    reading: list[asyncio.Task[None]] = []
    published = 0

    def open_reader(after: int = 0) -> None:
        reader = relay.open(JOB, mode, after=after)
        reader._page_entries = chance.choice([2, 3, 32])
        got[reader], clients[reader] = [], Client()
        reading.append(asyncio.create_task(read(reader)))

    async def read(reader: Reader) -> None:
        try:
            if mode is CHUNKS:
                got[reader] = await read_to_end(
                    reader, clients[reader], lambda: chance.randint(0, 3)
                )
            while not got[reader] or not got[reader][-1].last:
                got[reader] += await reader.next(LONG_S)
                await turns(chance.randint(0, 3))
        except StreamReset:
            reset.add(reader)

    def write() -> None:
        text = f"{len(log.entries)} " + "x" * chance.randint(0, 9)
        if mode is CHUNKS:
            log.write(*stream(text))
        else:
            log.write_text(text)

    def send() -> None:
        nonlocal published
        first = max(0, published - chance.choice([0, 0, 2]))
        published = len(log.entries)
        if chance.random() < 0.8:
            publish(relay, *log.entries[first:])

    log.mark("claimed")
    open_reader()
    for _ in range(80):
        act = chance.random()
        for client in clients.values():
            client.full = chance.random() < 0.3
        if act < 0.65:
            write()
            send()
        elif act < 0.75:
            log.mark("requeued")
            log.mark("claimed")
            send()
        elif act < 0.82:
            lost = min(len(log.entries) - 1, chance.choice([0, 1, 2, 5]))
            left = len(log.entries) - lost
            must_reset |= {reader for reader in got if reader.number > left}
            log.lose(lost)
            log.mark("requeued")
            log.mark("claimed")
            published = min(published, left)
            for _ in range(chance.choice([0, lost, lost + 2])):
                write()
            subscription_of(relay).connect()
        elif act < 0.9 and len(got) < 4:
            open_reader(chance.choice([0, chance.randint(0, len(log.entries))]))
        await turns(chance.randint(0, 3))
    log.end()
    subscription_of(relay).connect()
    async with asyncio.timeout(LONG_S):
        await asyncio.gather(*reading)
    assert reset == must_reset
    for reader, events in got.items():
        if reader in reset:
            continue
        whole = relay.open(JOB, mode, after=reader._skip)
        expected = await read_to_end(whole, Client(), lambda: 0)
        if mode is CHUNKS:
            assert clients[reader].data == output(expected)
        else:
            assert events == expected
