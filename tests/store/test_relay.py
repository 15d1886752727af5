"""A gateway's relay on a real Redis: what clients get of the jobs of a real queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gateway.core.reader import LogEvent, Reader, ReadMode
from gateway.core.relay import Relay
from shared.job.errors import StreamReset
from shared.job.log import Delta, frame_head, pack_entry, pack_frame
from shared.platform.metrics.gateway import GatewayMetrics
from shared.platform.tasks import end
from shared.store import keys
from shared.store.queue import HeldJob, Step
from tests.harness.waiting import eventually
from tests.store.conftest import GATEWAY, TENANT, Case, Holder, make_job

CHUNKS, DELTAS, END = ReadMode.CHUNKS, ReadMode.DELTAS, ReadMode.END
SILENCE_S = 60.0


@pytest.fixture
async def relay(case: Case) -> AsyncIterator[Relay]:
    """One that is subscribed."""
    queue, metrics = case.queue, GatewayMetrics(CollectorRegistry())
    relay = Relay(queue, queue.servers, GATEWAY, metrics)
    running = asyncio.create_task(relay.run())
    await relay.connected()
    yield relay
    await end([running])


async def submit(case: Case, relay: Relay, mode: ReadMode, **changes: Any) -> Reader:
    """The reader of a new job."""
    job = make_job(stream=mode is CHUNKS, **changes)
    reader = relay.open(job.id, mode, is_new=True)
    await case.submit_all([job])
    return reader


async def claim(worker: Holder) -> HeldJob:
    """The only job; its gateways are told."""
    job = await worker.claim_one()
    claimed = pack_entry(None, None, ["claimed", worker.name])
    frame = pack_frame(frame_head(job.id, job.generation), job.number, claimed)
    await worker.send(Step(messages={name: [frame] for name in job.watchers.split()}))
    return job


async def read(reader: Reader, count: int) -> bytes:
    """So many bytes of a stream."""
    found = b""
    while len(found) < count:
        found += b"".join([event.output for event in await reader.next(SILENCE_S)])
    return found


async def last(reader: Reader) -> LogEvent:
    """The end."""
    while not (events := await reader.next(SILENCE_S)) or not events[-1].last:
        pass
    return events[-1]


async def is_current(reader: Reader) -> bool:
    return reader.is_current


async def test_a_stream(case: Case, relay: Relay) -> None:
    reader, worker = await submit(case, relay, CHUNKS), case.worker()
    job = await claim(worker)
    await worker.write(job, text="a")
    await worker.write(job, text="b")
    assert await read(reader, 2) == b"ab"
    late, after = relay.open(job.id, CHUNKS), relay.open(job.id, CHUNKS, after=2)
    assert await read(late, 2) == b"ab"
    assert await read(after, 1) == b"b"
    await worker.write(job, text="c")
    for each in (reader, late, after):
        assert await read(each, 1) == b"c"
    await worker.end(job, "d")
    for each in (reader, late, after):
        event = await last(each)
        assert (event.event, event.output, event.details[1]) == ("completed", b"d", 1)


async def test_an_answer_that_is_not_streamed(case: Case, relay: Relay) -> None:
    reader, worker = await submit(case, relay, END), case.worker()
    job = await claim(worker)
    await worker.write(job)
    await worker.end(job, body=b"{}", content_type="text/json")
    event = await last(reader)
    assert (event.event, *event.details[2:]) == ("completed", 200, b"text/json", b"{}")
    assert await last(relay.open(job.id, END)) == LogEvent(0, "completed", b"")


async def test_the_events_of_a_job(case: Case, relay: Relay) -> None:
    """The claim is told at once; steps of an answer that is not streamed since a client follows."""
    first, worker = await submit(case, relay, END), case.worker()
    reader = relay.open(first.job_id, DELTAS, with_events=True)
    await eventually(lambda: is_current(reader), "the job is watched")
    job = await worker.claim_one()
    [event] = await reader.next(SILENCE_S)
    assert (event.number, event.event) == (1, "claimed")
    await worker.write(job, text="a")
    [event] = await reader.next(SILENCE_S)
    assert event == LogEvent(2, "", [Delta(0, 0, (1,), "a")])
    await worker.end(job, body=b"{}")
    assert (await last(reader)).event == (await last(first)).event == "completed"


async def test_a_lost_worker_and_its_late_output(case: Case, relay: Relay) -> None:
    reader, worker, other = await submit(case, relay, CHUNKS), case.worker(), case.worker("w-2")
    job = await claim(worker)
    await worker.write(job, text="a")
    await case.queue.give_back([job], "requeued", "lost")
    assert (await worker.write(job, text="x")).refused == {job.id: "queued"}
    again = await claim(other)
    assert (await worker.write(job, text="y")).refused
    await other.write(again, text="b")
    await other.end(again, "c")
    assert await read(reader, 3) == b"abc"


async def test_a_lost_connection(case: Case, relay: Relay) -> None:
    reader, worker = await submit(case, relay, CHUNKS), case.worker()
    job = await claim(worker)
    await worker.write(job, text="a")
    assert await read(reader, 1) == b"a"
    case.server.client_kill_filter(_type="pubsub")
    await worker.write(job, text="b")
    assert await read(reader, 1) == b"b"
    await worker.write(job, text="c")
    assert await read(reader, 1) == b"c"


async def test_frames_that_are_lost_in_silence(case: Case, relay: Relay) -> None:
    reader, worker = await submit(case, relay, CHUNKS), case.worker()
    job = await claim(worker)
    plain = await submit(case, relay, END)
    await worker.write(job._replace(watchers=""), text="a")
    assert await read(reader, 1) == b"a"
    for each in (reader, plain):
        await case.queue.unwatch(each.job_id, GATEWAY)
    await case.queue.cancel(TENANT, reader.job_id, plain.job_id)
    assert (await last(reader)).event == (await last(plain)).event == "cancelled"


async def test_a_log_that_is_lost(case: Case, relay: Relay) -> None:
    reader, worker = await submit(case, relay, CHUNKS), case.worker()
    job = await claim(worker)
    await worker.write(job, text="a")
    assert await read(reader, 1) == b"a"
    case.server.delete(keys.log(0, job.id))
    assert (await worker.write(job)).refused == {job.id: "failed"}
    with pytest.raises(StreamReset):
        await read(reader, 1)


async def test_a_job_whose_client_has_left(case: Case, relay: Relay) -> None:
    reader = await submit(case, relay, CHUNKS, keep_s=0.0)
    relay.close(reader, leave=True)
    await relay.drain()
    await case.queue.tick(0)
    [job] = await case.queue.get(reader.job_id)
    assert job is not None
    assert job.state == "cancelled"
