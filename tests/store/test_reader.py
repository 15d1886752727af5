"""A client's place in a log, through a gateway's relay: what the model (test_model.py), which has
the same readers, and streams over HTTP do not show."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gateway.core import reader as reader_module
from gateway.core import relay as relay_module
from gateway.core.reader import LogEvent, Reader, ReadMode
from gateway.core.relay import Relay
from shared.job.errors import RedisUnavailable, StreamReset
from shared.job.log import (
    Position,
    frame_head,
    pack_entry,
    pack_frame,
)
from shared.platform.metrics.gateway import GatewayMetrics
from shared.platform.tasks import end
from shared.store.errors import StoreTimeout, StoreUnavailable
from shared.store.queue import HeldJob
from tests.harness.waiting import eventually
from tests.store.conftest import GATEWAY, Case, Holder, make_job

CHUNKS, DELTAS, END = ReadMode.CHUNKS, ReadMode.DELTAS, ReadMode.END
LONG_S = 60.0
"""Nothing in these tests waits so long."""


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
async def relay(
    case: Case, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Relay]:
    """One that is subscribed."""
    monkeypatch.setattr(relay_module, "_RETRY_S", 0.01)
    monkeypatch.setattr(reader_module, "_RETRY_S", 0.01)
    relay = Relay(case.queue, case.queue.servers, GATEWAY, GatewayMetrics(registry))
    running = asyncio.create_task(relay.run())
    await relay.connected()
    yield relay
    await end([running])


async def submit(case: Case, relay: Relay, mode: ReadMode = CHUNKS, **changes: Any) -> Reader:
    """The reader of a new job."""
    job = make_job(stream=mode is CHUNKS, **changes)
    reader = relay.open(job.id, mode, is_new=True)
    await case.submit_all([job])
    return reader


async def begin(
    case: Case, relay: Relay, mode: ReadMode = CHUNKS, **changes: Any
) -> tuple[Reader, Holder, HeldJob]:
    """A new job's reader, and the worker that has claimed it."""
    reader, worker = await submit(case, relay, mode, **changes), case.worker()
    job = await worker.claim_one()
    relay.dispatch(frame_of(job, 1, pack_entry(None, None, ["claimed", worker.name])))
    return reader, worker, job


def frame_of(job: HeldJob, number: int, entry: bytes) -> bytes:
    return pack_frame(frame_head(job.id, job.generation), number, entry)


def output(events: Sequence[LogEvent]) -> bytes:
    return b"".join(event.output for event in events)


async def read(reader: Reader, count: int) -> bytes:
    """So many bytes of a stream."""
    found = b""
    while len(found) < count:
        found += output(await reader.next(LONG_S))
    return found


# --- frames that are lost ---


async def test_a_lost_frame_is_read_from_the_log(
    case: Case, relay: Relay, registry: CollectorRegistry
) -> None:
    reader, worker, job = await begin(case, relay)
    await worker.write(job._replace(watchers=""), text="a")
    await worker.write(job, text="b")
    assert await read(reader, 2) == b"ab"
    assert registry.get_sample_value("flotilla_stream_gaps_total") == 1
    relay.dispatch(b"\xc1 malformed")  # whose frames it had is not known
    await worker.write(job._replace(watchers=""), text="c")
    await worker.write(job, text="d")
    assert await read(reader, 2) == b"cd"
    case.server.client_kill_filter(_type="pubsub")
    await worker.write(job, text="e")
    assert await read(reader, 1) == b"e"
    await worker.write(job, text="f")
    assert await read(reader, 1) == b"f"


async def test_looks_for_lost_frames_become_rare(relay: Relay) -> None:
    reader, now = relay.open(make_job().id, CHUNKS, is_new=True), time.monotonic() + 1e6
    reader.is_to_be_looked_at(now)
    looks = [n for n in range(40) if reader.is_to_be_looked_at(now + n)]
    assert looks == [1, 3, 7, 15, 25, 35]
    reader.generation, reader.number = 7, 1  # a frame has come
    assert not reader.is_to_be_looked_at(now + 40)
    assert reader.is_to_be_looked_at(now + 41)
    reader.number = 2
    reader.on_position(Position(7, 1))
    assert not reader.is_unwatched, "a position that came too late is no loss"
    reader.queued = asyncio.get_running_loop().create_future()
    assert not reader.is_to_be_looked_at(now + 1000)


# --- its events ---


@pytest.mark.parametrize("mode", ReadMode)
@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreTimeout("away")])
async def test_an_outage_becomes_an_error_only_after_a_while(
    case: Case, relay: Relay, mode: ReadMode, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, worker, job = await begin(case, relay, mode)

    async def fail(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as away:
        for name in ("watch", "read"):
            away.setattr(case.queue, name, fail)
        reader.resync()
        for _ in range(3):
            assert await reader.next(0.001) == []

    async def is_over() -> bool:
        return await reader.next(0.001) == [] and reader.is_current

    await eventually(is_over, "it goes on")
    monkeypatch.setattr(case.queue, "watch", fail)
    monkeypatch.setattr(reader_module, "_REDIS_PATIENCE_S", 0.0)
    reader.resync()
    with pytest.raises(RedisUnavailable):
        await reader.next(LONG_S)
    reader.fail(StreamReset("gone"))
    await worker.write(job)
    with pytest.raises(RedisUnavailable):  # the first error counts
        await reader.next(LONG_S)


MALFORMED: list[Any] = [b"bytes", 7, [7], [None], [[1]], [[1, 2, 3]], [[b"a", b"b"]], {b"a": b"b"}]


async def test_malformed_chunks_end_their_own_answer_only(
    case: Case, relay: Relay, registry: CollectorRegistry
) -> None:
    readers = [await submit(case, relay) for _ in MALFORMED]
    other, worker = await submit(case, relay), case.worker()
    jobs = {job.id: job for job in await worker.claim()}
    for reader, items in zip(readers, MALFORMED, strict=True):
        job = jobs[reader.job_id]
        claimed = pack_entry(None, None, ["claimed", worker.name])
        relay.dispatch(frame_of(job, 1, claimed) + frame_of(job, 2, pack_entry(None, items)))
        with pytest.raises(StreamReset):
            await reader.next(LONG_S)
    await worker.write(jobs[other.job_id], text="a")
    assert await read(other, 1) == b"a"
    malformed = registry.get_sample_value("flotilla_malformed_values_total", {"kind": "frame"})
    assert malformed == len(MALFORMED)


# --- clients that are slow, and that leave ---


async def test_who_waits_for_no_time_lets_others_run(case: Case, relay: Relay) -> None:
    """Once a stream that was taken up again held all others."""
    _, worker, job = await begin(case, relay)
    await worker.write(job)
    reader = relay.open(job.id, CHUNKS)
    async with asyncio.timeout(LONG_S):
        while not await reader.next(0):
            pass


async def test_a_job_is_watched_once_it_is_queued_and_no_more_when_all_have_left(
    case: Case, relay: Relay, registry: CollectorRegistry
) -> None:
    job = make_job(keep_s=0.0)
    reader = relay.open(job.id, CHUNKS, is_new=True)
    reader.queued = asyncio.get_running_loop().create_future()
    reader.resync()  # a connection was lost meanwhile
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert reader.is_unwatched, "a job that is not there yet would be told as lost"
    await case.submit_all([job])
    reader.queued.set_result(None)
    await eventually(lambda: reader.is_current, "it has read the log")
    other = relay.open(job.id, CHUNKS)
    for each, state in ((reader, "queued"), (other, "cancelled")):
        relay.close(each, leave=True)
        await relay.drain()
        assert await case.state(job) == state
    assert registry.get_sample_value("flotilla_open_streams") == 0
