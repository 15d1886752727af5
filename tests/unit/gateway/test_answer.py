"""The answer to a call that waits: chunks go from the relay to the socket, in order, once each."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message

from gateway.core.answer import JobAnswer
from gateway.core.incoming import Incoming
from gateway.core.log_event import ReadMode
from gateway.core.relay import Relay
from gateway.core.unwatcher import Unwatcher
from shared.fleet.told_waits import ToldWaits
from shared.fleet.wait_estimate import WaitEstimate
from shared.job.errors import QueueFull
from shared.job.frames import DeltaEncoder, FrameKind, encode
from shared.job.job import Job, NewJob
from shared.job.job_log import Entry
from shared.job.replies import LogPart
from shared.job.states import JobState
from shared.platform.metrics.gateway import GatewayMetrics
from shared.store.redis.servers import Servers
from shared.tenants.api_key import ApiKey
from tests.harness.settings import Settings
from tests.harness.waiting import eventually

JOB = "job_000" + "0" * 24
DEADLINE_S = 30.0
BUFFER = 1000


class Queue:
    """The queue as far as an answer asks it."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.unwatched: list[str] = []
        self.job: Job | None = None

    async def read_log(self, job_id: str, after: int, most_bytes: int) -> LogPart:
        return LogPart(1, self.log[after:])

    async def last_entry(self, job_id: str) -> Entry | None:
        return self.log[-1] if self.log else None

    async def get(self, job_id: str) -> Job | None:
        return self.job

    async def unwatch(self, job_id: str, gateway: str) -> None:
        assert gateway == "gw"
        self.unwatched.append(job_id)


async def third(queue: Queue, job: Job) -> int:
    """Every job's position."""
    return 3


class Client:
    """A server's `send` and `receive`: `send` waits while there is no room, then takes it all."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.room = asyncio.Event()
        self.room.set()
        self.waits = 0
        self.broken: Exception | None = None
        self.gone = asyncio.Event()

    async def send(self, message: Message) -> None:
        if self.broken is not None:
            raise self.broken
        if not self.room.is_set():
            self.waits += 1
            await self.room.wait()
        self.sent.append(message)

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    @property
    def parts(self) -> list[bytes]:
        return [m["body"] for m in self.sent if m["type"] == "http.response.body"]

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def complete(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False

    @property
    def status(self) -> int:
        (status,) = [m["status"] for m in self.sent if m["type"] == "http.response.start"]
        assert self.sent[0]["type"] == "http.response.start"
        return int(status)


class Call:
    """A client's call, and what a worker publishes for it."""

    def __init__(self, *, stream: bool = True, acknowledged: bool = True, **settings: Any) -> None:
        self.registry = CollectorRegistry()
        self.queue, self.client = Queue(), Client()
        self.folder = DeltaEncoder()
        self.published = 0
        metrics = GatewayMetrics(self.registry)
        queue: Any = self.queue
        self.relay = Relay(queue, Servers("redis://nowhere"), "gw", metrics, BUFFER)
        self.unwatcher = Unwatcher(queue, "gw", self.relay.has_readers)
        self.gateway: Any = SimpleNamespace(
            unwatcher=self.unwatcher,
            settings=Settings(**({"keepalive_s": DEADLINE_S} | settings)),
            queue=queue,
            relay=self.relay,
            metrics=metrics,
            fleet=SimpleNamespace(wait_estimate=self.estimate, told_waits=ToldWaits()),
        )
        self.wait = WaitEstimate(None, "")
        """What clients are told."""
        self.job = NewJob(
            id=JOB,
            tenant="t",
            pool="p",
            lane="default",
            model="m",
            endpoint="/v1/chat/completions",
            body=b"{}",
            stream=stream,
            ttl_s=60.0,
            max_attempts=3,
            gateway="gw",
        )
        reader = self.relay.open(JOB, ReadMode.CHUNKS if stream else ReadMode.END)
        self.queued: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if acknowledged:
            self.queued.set_result(None)
        reader.queued = self.queued
        incoming = Incoming({}, self.client.receive, ApiKey("", "t"), time.monotonic(), b"req-1")
        self.answer = JobAnswer(self.gateway, self.job, reader, incoming)
        self.task = asyncio.create_task(self.answer({}, self.client.receive, self.client.send))

    def estimate(self, *_: object) -> WaitEstimate:
        return self.wait

    def log(self, *chunks: bytes) -> list[bytes]:
        """Entries of the log; returns their frames."""
        frames = []
        for chunk in chunks:
            items = tuple(self.folder.encode([chunk]))
            self.queue.log.append(Entry(len(self.queue.log) + 1, items, None, ""))
            frames.append(encode(JOB, len(self.queue.log), FrameKind.CHUNK, items))
        return frames

    def say(self, *chunks: bytes) -> None:
        """One message with these chunks arrives."""
        self.relay._dispatch(b"".join(self.log(*chunks)))

    def end(self, kind: FrameKind = FrameKind.DONE, payload: Any = b"") -> None:
        self.queue.log.append(Entry(len(self.queue.log) + 1, (), None, "completed"))
        self.relay._dispatch(encode(JOB, len(self.queue.log), kind, payload))

    async def over(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.task

    def counted(self, name: str) -> float:
        return self.registry.get_sample_value(name) or 0.0


@pytest.fixture
async def call() -> AsyncIterator[Call]:
    """A streamed call that has got its first chunk."""
    call = Call()
    await turns()
    call.say(event("0"))
    await turns()
    assert call.client.body == event("0")
    yield call
    call.task.cancel()
    await asyncio.gather(call.task, return_exceptions=True)


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"text": text, "more": None}).encode() + b"\n\n"


def events(*texts: str) -> bytes:
    return b"".join(event(text) for text in texts)


def in_state(state: JobState) -> Any:
    fields = {"pool": "p", "tenant": "t", "result": b"", "result_bytes": 0, "status": 200}
    return SimpleNamespace(state=state, **fields)


async def turns(count: int = 10) -> None:
    """Everybody who can act does so."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_first_chunk_opens_the_stream() -> None:
    call = Call()
    await turns()
    assert call.client.sent == []
    call.say(event("a"), event("b"))
    call.end()
    await call.over()
    assert call.client.status == 200
    headers = dict(call.client.sent[0]["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert headers[b"x-flotilla-job-id"] == JOB.encode()
    assert headers[b"x-request-id"] == b"req-1"
    assert call.client.body == events("a", "b")
    assert call.client.complete


async def test_the_first_chunk_is_written_in_the_turn_in_which_it_arrives() -> None:
    call = Call()
    await turns()
    call.say(event("0"), event("1"))
    assert call.client.status == 200
    assert call.client.body == events("0", "1")
    assert call.counted("flotilla_ttft_seconds_count") == 1
    assert call.counted("flotilla_inter_token_seconds_count") == 1
    call.relay._readers[JOB.encode()][0].resync()  # a look at the log, and it has no more
    await turns()
    call.say(event("2"))
    assert call.client.parts[-1] == event("2")
    assert call.counted("flotilla_ttft_seconds_count") == 1
    assert call.counted("flotilla_inter_token_seconds_count") == 2
    call.end()
    await call.over()
    assert call.client.body == events("0", "1", "2")
    assert call.client.complete


@pytest.mark.parametrize("kept", ["head", "body"])
async def test_a_response_that_has_to_wait_for_room_is_started_once(kept: str) -> None:
    call = Call()
    await turns()
    send = call.client.send
    if kept == "head":
        call.client.room.clear()
    else:

        async def keeps_the_body(message: Message) -> None:
            await send(message)
            call.client.room.clear()

        call.answer._response._send = keeps_the_body
    call.say(event("0"))
    call.say(event("1"))
    assert call.client.body == b""
    assert len(call.client.sent) == (kept == "body")
    call.answer._response._send = send
    await turns()
    call.client.room.set()
    await turns()
    assert call.client.status == 200  # there is one
    assert call.client.body == events("0", "1")
    call.say(event("2"))
    assert call.client.parts[-1] == event("2")
    assert call.counted("flotilla_ttft_seconds_count") == 1
    call.end()
    await call.over()
    assert call.client.body == events("0", "1", "2")
    assert call.client.complete


async def test_the_first_chunk_after_a_comment_counts_as_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.core.progress.position", third)
    call = Call(keepalive_s=0.01)
    call.queue.job = in_state(JobState.IN_PROGRESS)

    async def commented() -> bool:
        return call.client.body.startswith(b": ")

    await eventually(commented, "a comment")
    call.say(event("0"))
    assert call.client.parts[-1] == event("0")
    assert call.client.status == 200
    assert call.counted("flotilla_ttft_seconds_count") == 1
    assert call.counted("flotilla_inter_token_seconds_count") == 0
    call.say(event("1"))
    assert call.counted("flotilla_ttft_seconds_count") == 1
    assert call.counted("flotilla_inter_token_seconds_count") == 1
    call.task.cancel()
    await asyncio.gather(call.task, return_exceptions=True)


async def test_a_client_that_leaves_at_its_first_chunk_gets_no_more() -> None:
    call = Call()
    await turns()
    send = call.client.send

    async def leaves(message: Message) -> None:
        await send(message)
        if message["type"] == "http.response.body":
            call.answer._on_client_left()

    call.answer._response._send = leaves
    call.say(event("0"), event("1"))
    await call.over()
    assert call.client.body == event("0")
    await call.unwatcher.drain()
    assert call.queue.unwatched == [JOB]


async def test_a_chunk_is_written_in_the_turn_in_which_it_arrives(call: Call) -> None:
    call.say(event("1"))
    assert call.client.parts[-1] == event("1")
    call.say(event("2"), event("3"))
    assert call.client.body == events("0", "1", "2", "3")
    call.end()
    await call.over()
    assert call.client.body == events("0", "1", "2", "3")
    assert call.client.complete
    assert call.queue.unwatched == []


async def test_while_the_socket_is_full_nothing_is_written_and_the_task_takes_over(
    call: Call,
) -> None:
    call.client.room.clear()
    call.say(event("1"))
    assert call.client.waits == 1
    assert call.client.body == event("0")
    call.say(event("2"))  # it does not try again: the order
    assert call.client.waits == 1
    await turns()
    assert call.client.waits == 2  # now the task waits
    call.say(event("3"))
    await turns()
    assert call.client.body == event("0")
    call.client.room.set()
    await turns()
    assert call.client.body == events("0", "1", "2", "3")
    call.say(event("4"))
    assert call.client.parts[-1] == event("4")
    call.end()
    await call.over()
    assert call.client.body == events("0", "1", "2", "3", "4")
    assert call.client.complete


async def test_the_order_is_kept_if_there_is_room_before_the_task_runs(call: Call) -> None:
    call.client.room.clear()
    call.say(event("1"))
    call.client.room.set()
    call.say(event("2"))
    assert call.client.body == event("0")
    await turns()
    assert call.client.body == events("0", "1", "2")


async def test_the_end_waits_for_room_too(call: Call) -> None:
    call.client.room.clear()
    call.say(event("1"))
    call.end()
    await turns()
    assert not call.task.done()
    assert not call.client.complete
    call.client.room.set()
    await call.over()
    assert call.client.body == events("0", "1")
    assert call.client.complete


async def test_chunks_of_a_client_that_stops_reading_are_not_kept_in_memory(
    call: Call,
) -> None:
    call.client.room.clear()
    texts = [f"{i:0100}" for i in range(50)]
    for text in texts:
        call.say(event(text))
        await turns(2)
    (reader,) = call.relay._readers[JOB.encode()]
    assert len(reader._events) < 20
    call.queue.job = in_state(JobState.COMPLETED)
    call.end()
    call.client.room.set()
    await call.over()
    assert call.client.body == events("0", *texts)


async def test_a_send_that_fails_affects_its_own_call_only(call: Call) -> None:
    other = call.relay.open("job_001" + "0" * 24, ReadMode.CHUNKS)
    call.client.broken = RuntimeError("broken")
    of_other = encode(other.job_id, 1, FrameKind.CHUNK, [b"x"])
    call.relay._dispatch(b"".join([*call.log(event("1")), of_other]))
    assert [piece.payload for piece in await other.next(DEADLINE_S)] == [b"x"]
    with pytest.raises(RuntimeError, match="broken"):
        await call.over()
    await call.unwatcher.drain()
    assert call.queue.unwatched == [JOB]


async def test_every_chunk_that_is_written_is_measured(call: Call) -> None:
    assert call.counted("flotilla_ttft_seconds_count") == 1
    call.say(event("1"))
    call.say(event("2"))
    call.client.room.clear()
    call.say(event("3"))
    await turns()
    call.client.room.set()
    await turns()
    assert call.counted("flotilla_ttft_seconds_count") == 1
    assert call.counted("flotilla_inter_token_seconds_count") == 3


async def test_a_lost_chunk_is_written_in_its_place(call: Call) -> None:
    call.log(event("1"))
    call.say(event("2"))
    await turns()
    assert call.client.body == events("0", "1", "2")
    call.say(event("3"))
    assert call.client.parts[-1] == event("3")
    assert call.counted("flotilla_stream_gaps_total") == 1


async def test_a_client_that_leaves_unwatches_its_job(call: Call) -> None:
    call.say(event("1"))
    call.client.gone.set()
    await call.over()
    await call.unwatcher.drain()
    assert call.queue.unwatched == [JOB]
    assert not call.client.complete
    assert call.relay._readers == {}
    call.say(event("2"))
    assert call.client.body == events("0", "1")


async def test_a_client_that_leaves_while_the_socket_is_full_ends_its_call(call: Call) -> None:
    call.client.room.clear()
    call.say(event("1"))
    await turns()
    call.client.gone.set()
    call.client.room.set()  # as a server does when its client has left
    await call.over()
    await call.unwatcher.drain()
    assert call.queue.unwatched == [JOB]


async def test_a_stream_whose_log_is_lost_ends_with_an_error(call: Call) -> None:
    call.say(event("1"))
    call.queue.log = []
    (reader,) = call.relay._readers[JOB.encode()]
    reader.resync()
    await call.over()
    assert call.client.body.startswith(events("0", "1") + b'data: {"error"')
    assert b"[DONE]" not in call.client.body
    assert call.client.complete


async def test_a_refusal_by_the_engine_is_not_streamed() -> None:
    call = Call()
    await turns()
    call.end(FrameKind.RESULT, (400, b"application/json", b'{"error": 1}'))
    await call.over()
    assert call.client.status == 400
    assert call.client.body == b'{"error": 1}'
    assert dict(call.client.sent[0]["headers"])[b"content-type"] == b"application/json"


async def test_an_answer_that_is_not_streamed_is_sent_whole() -> None:
    call = Call(stream=False)
    await turns()
    call.end(FrameKind.RESULT, (200, b"application/json", b"{}"))
    await call.over()
    assert (call.client.status, call.client.body) == (200, b"{}")
    assert call.client.complete


async def test_a_comment_is_sent_in_a_silence_after_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.core.progress.position", third)
    call = Call(keepalive_s=0.01)
    call.queue.job = in_state(JobState.IN_PROGRESS)
    call.say(event("0"))

    async def commented() -> bool:
        return b"\n\n: in_progress, position 3\n\n" in call.client.body

    await eventually(commented, "a comment")
    call.say(event("1"))
    call.end()
    await call.over()
    assert [part for part in call.client.parts if part.startswith(b"data")] == [
        event("0"),
        event("1"),
    ]
    assert call.client.complete


async def told(call: Call) -> tuple[dict[bytes, bytes], bytes]:
    async def commented() -> bool:
        return bool(call.client.parts)

    await eventually(commented, "a comment")
    return dict(call.client.sent[0]["headers"]), call.client.parts[0]


async def test_a_client_that_waits_is_told_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.core.progress.position", third)
    monkeypatch.setattr("gateway.core.answer._FIRST_COMMENT_S", 0.01)
    call = Call()
    call.queue.job = in_state(JobState.QUEUED)
    call.wait = WaitEstimate(12.34, "", (8.0, 21.0))
    headers, comment = await told(call)
    assert comment == b": queued, position 3, starts in about 12.3 s (8.0 s to 21.0 s)\n\n"
    assert headers[b"x-flotilla-queue-position"] == b"3"
    assert headers[b"x-flotilla-estimated-start"] == b"12.3"
    assert headers[b"x-flotilla-estimated-start-range"] == b"8.0-21.0"
    call.say(event("0"))
    call.end()
    await call.over()
    assert call.registry.get_sample_value("flotilla_told_wait_ratio_count") == 1
    assert call.registry.get_sample_value("flotilla_told_wait_ratio_sum") < 1, "it took no 12 s"


@pytest.mark.parametrize("wait", [WaitEstimate(None, "no worker runs"), WaitEstimate(1.0, "")])
async def test_what_is_not_known_is_not_told_and_a_short_wait_not_compared(
    wait: WaitEstimate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.core.progress.position", third)
    monkeypatch.setattr("gateway.core.answer._FIRST_COMMENT_S", 0.01)
    call = Call()
    call.queue.job = in_state(JobState.QUEUED)
    call.wait = wait
    headers, comment = await told(call)
    assert (b"x-flotilla-estimated-start" in headers) == (wait.wait_s is not None)
    assert b"x-flotilla-estimated-start-range" not in headers
    assert comment.startswith(b": queued, position 3")
    assert comment.endswith(
        b"; no worker runs\n\n" if wait.reason else b", starts in about 1.0 s\n\n"
    )
    call.say(event("0"))
    call.end()
    await call.over()
    assert call.registry.get_sample_value("flotilla_told_wait_ratio_count") == 0


async def test_a_job_is_not_gone_before_its_submit_is_acknowledged() -> None:
    call = Call(keepalive_s=0.01, acknowledged=False)

    async def commented() -> bool:
        return call.client.body.startswith(b": waiting for the queue")

    await eventually(commented, "a comment")
    call.queued.set_result(None)
    await call.over()
    assert b"The queue has lost this job." in call.client.body


async def test_an_answer_in_one_piece_waits_until_its_submit_is_acknowledged() -> None:
    call = Call(stream=False, keepalive_s=0.001, acknowledged=False)
    await asyncio.sleep(0.05)
    assert not call.task.done()
    call.queued.set_result(None)
    await call.over()
    assert call.client.status == 500
    assert b"The queue has lost this job." in call.client.body


async def test_with_a_pace_chunks_are_joined_into_one_write() -> None:
    call = Call(stream_pace_s=0.05)
    call.say(event("1"))
    await turns()
    assert call.client.body == event("1")  # the first is not held back
    for name in "23456":
        call.say(event(name))
        await turns()
    assert call.client.body == event("1")
    call.end()
    await call.over()
    assert call.client.body == events("1", "2", "3", "4", "5", "6")
    assert [part for part in call.client.parts if part] == [
        event("1"),
        events("2", "3", "4", "5", "6"),
    ]


async def test_a_job_that_could_not_be_queued_is_answered_with_its_error() -> None:
    call = Call()
    reader = call.relay._readers[JOB.encode()][0]
    reader.fail(QueueFull("full").after(4.5))
    await call.over()
    assert call.client.status == 503
    assert dict(call.client.sent[0]["headers"])[b"retry-after"] == b"5"
    assert call.queue.unwatched == []
