"""A gateway's relay on a real Redis: what clients get of the jobs of a real queue."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from redis import Redis

from gateway.core.log_reader import LogEvent, Reader, ReadMode
from gateway.core.log_relay import LogRelay
from shared.job.errors import FlotillaError, StreamReset
from shared.job.job import NewJob, new_job_id
from shared.job.log import (
    Delta,
    Position,
    frame_head,
    make_journal,
    pack_entry,
    pack_frame,
)
from shared.job.result import JobResult
from shared.job.states import JobEvent
from shared.platform.metrics.gateway import GatewayMetrics
from shared.store.queue import HeldJob, Queue, Step, pack_end
from shared.store.redis.servers import Servers
from tests.harness.servers import RedisServer
from tests.harness.waiting import eventually

CHUNKS, DELTAS, END = ReadMode.CHUNKS, ReadMode.DELTAS, ReadMode.END
GATEWAY = "gw-1"
SILENCE_S = 60.0


class Gateway:
    """Submits jobs and reads their answers."""

    def __init__(self, queue: Queue, relay: LogRelay) -> None:
        self.queue = queue
        self.relay = relay

    async def submit(self, mode: ReadMode, **changes: Any) -> Reader:
        """The reader of a new job."""
        job = NewJob(
            id=new_job_id(1),
            tenant="tenant",
            pool="pool",
            lane="default",
            model="m",
            endpoint="/v1/completions",
            body=b"{}",
            stream=mode is CHUNKS,
            ttl_s=60.0,
            gateway=GATEWAY,
        )._replace(**changes)
        reader = self.relay.open(job.id, mode, is_new=True)
        reply = await self.queue.submit(0, [job], 100)
        [found] = self.queue.parse_submit([job], reply)
        assert not isinstance(found, FlotillaError)
        return reader


class Worker:
    """Has one job, and sends its output."""

    def __init__(self, queue: Queue, name: str = "w-1") -> None:
        self.queue = queue
        self.name = name
        self.job: HeldJob
        self.number = 0
        self.is_told = False

    async def claim(self, *, past: int = 0) -> None:
        """Take the job, which has so many entries."""
        claimed = await self.queue.claim(0, "pool", self.name, room=1, known=0, most=1)
        assert claimed is not None
        [self.job] = claimed
        self.number = self.job.number
        assert self.number == past + 1

    async def write(self, *texts: str, watchers: str = "") -> dict[str, str]:
        """One step for each text; returns the jobs that are lost."""
        entries: list[Any] = []
        head = frame_head(self.job.id, self.job.generation)
        claimed = pack_entry(None, None, ["claimed", self.name])
        frames = [] if self.is_told else [pack_frame(head, self.number, claimed)]
        self.is_told = True
        for text in texts:
            self.number += 1
            items = [text.encode()] if self.job.stream else []
            entry = pack_entry(make_journal([(0, 0, (7,), text)], items), items)
            entries += [self.job.id, str(Position(self.job.generation, self.number)), entry]
            frames.append(pack_frame(head, self.number, entry))
        gateways = (watchers or self.job.watchers).split() if self.job.follows else []
        step = Step(entries=entries, messages=dict.fromkeys(gateways, frames))
        return dict(self.queue.parse_emit(await self._emit(step)).refused)

    async def end(self, text: str = "", body: bytes = b"") -> None:
        """The last step."""
        result = JobResult(JobEvent.COMPLETE, "", 200, "application/json", body, 5, self.number)
        items = [text.encode()] if self.job.stream else []
        journal = make_journal([(0, 0, (7,), text)], items)
        end = pack_end(self.job, self.number + 1, journal, items, self.number, result)
        await self._emit(Step(ends=[end]))

    async def _emit(self, step: Step) -> Any:
        await self.queue.connect(0)
        return await self.queue.emit(0, self.name, b"", step)


@pytest.fixture
async def gateway(kind: RedisServer) -> AsyncIterator[Gateway]:
    """A gateway that is subscribed."""
    async with Servers(kind.url) as servers:
        queue = Queue(servers)
        relay = LogRelay(queue, servers, GATEWAY, GatewayMetrics(CollectorRegistry()))
        running = asyncio.create_task(relay.run())
        await relay.connected()
        yield Gateway(queue, relay)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await queue.close()


@pytest.fixture
async def worker(kind: RedisServer) -> AsyncIterator[Worker]:
    """A worker with connections of its own."""
    async with Servers(kind.url) as servers:
        queue = Queue(servers)
        yield Worker(queue)
        await queue.close()


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


async def test_a_stream(gateway: Gateway, worker: Worker) -> None:
    reader = await gateway.submit(CHUNKS)
    await worker.claim()
    await worker.write("a", "b")
    assert await read(reader, 2) == b"ab"
    late = gateway.relay.open(worker.job.id, CHUNKS)
    assert await read(late, 2) == b"ab"
    after = gateway.relay.open(worker.job.id, CHUNKS, after=2)
    assert await read(after, 1) == b"b"
    await worker.write("c")
    for each in (reader, late, after):
        assert await read(each, 1) == b"c"
    await worker.end("d")
    for each in (reader, late, after):
        event = await last(each)
        assert (event.event, event.output, event.details[1]) == ("completed", b"d", 1)


async def test_an_answer_that_is_not_streamed(gateway: Gateway, worker: Worker) -> None:
    reader = await gateway.submit(END)
    await worker.claim()
    await worker.write("a", "b")
    await worker.end("c", b"{}")
    event = await last(reader)
    assert (event.event, *event.details[2:]) == ("completed", 200, b"application/json", b"{}")
    assert await last(gateway.relay.open(worker.job.id, END)) == LogEvent(0, "completed", b"")


async def test_the_events_of_a_job(gateway: Gateway, worker: Worker) -> None:
    """The claim is told at once; steps of an answer that is not streamed since a client follows."""
    job_id = (await gateway.submit(END)).job_id
    reader = gateway.relay.open(job_id, DELTAS, with_events=True)
    await eventually(lambda: is_current(reader), "the job is watched")
    await worker.claim()
    [event] = await reader.next(SILENCE_S)
    assert (event.number, event.event) == (1, "claimed")
    await worker.write("a")
    [event] = await reader.next(SILENCE_S)
    assert event == LogEvent(2, "", [Delta(0, 0, (7,), "a")])
    await worker.end("b", b"{}")
    event = await last(reader)
    assert (event.event, event.output) == ("completed", [Delta(0, 0, (7,), "b")])


async def test_a_lost_worker_and_its_late_output(
    gateway: Gateway, worker: Worker, kind: RedisServer
) -> None:
    reader = await gateway.submit(CHUNKS)
    await worker.claim()
    await worker.write("a")
    await worker.queue.give_back([worker.job], "requeued", "lost")
    assert await worker.write("x") == {worker.job.id: "queued"}
    other = Worker(worker.queue, "w-2")
    await other.claim(past=3)
    assert await worker.write("y")
    await other.write("b")
    await other.end("c")
    assert await read(reader, 3) == b"abc"


async def test_a_lost_connection(gateway: Gateway, worker: Worker, server: Redis) -> None:
    reader = await gateway.submit(CHUNKS)
    await worker.claim()
    await worker.write("a")
    assert await read(reader, 1) == b"a"
    server.client_kill_filter(_type="pubsub")
    await worker.write("b")
    assert await read(reader, 1) == b"b"
    await worker.write("c")
    assert await read(reader, 1) == b"c"


async def test_frames_that_are_lost_in_silence(gateway: Gateway, worker: Worker) -> None:
    reader, plain = await gateway.submit(CHUNKS), await gateway.submit(END)
    await worker.claim()
    await worker.write("a")
    assert await read(reader, 1) == b"a"
    await worker.write("b", watchers="nobody")
    assert await read(reader, 1) == b"b"
    await gateway.queue.unwatch(plain.job_id, GATEWAY)
    await gateway.queue.unwatch(reader.job_id, GATEWAY)
    await gateway.queue.cancel("tenant", plain.job_id, reader.job_id)
    assert (await last(reader)).event == (await last(plain)).event == "cancelled"


async def test_a_log_that_is_lost(gateway: Gateway, worker: Worker, server: Redis) -> None:
    reader = await gateway.submit(CHUNKS)
    await worker.claim()
    await worker.write("a")
    assert await read(reader, 1) == b"a"
    [log] = server.keys("*log:job_*")
    server.delete(log)
    assert await worker.write("b") == {worker.job.id: "failed"}
    with pytest.raises(StreamReset):
        await read(reader, 1)


async def test_a_job_whose_client_has_left(gateway: Gateway) -> None:
    reader = await gateway.submit(CHUNKS, keep_s=0.0)
    gateway.relay.close(reader, leave=True)
    await gateway.relay.drain()

    async def is_cancelled() -> bool:
        await gateway.queue.tick(0)
        [job] = await gateway.queue.get(reader.job_id)
        return job is not None and job.state == "cancelled"

    await eventually(is_cancelled, "nobody follows the job")


async def is_current(reader: Reader) -> bool:
    return reader.is_current
