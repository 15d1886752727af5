"""The answer to a call that waits for its job: vLLM's bytes, as the job's reader delivers them.

Token path: streaming/reader.py -> here for the first chunk of a stream, and for any chunk of a
client that reads slowly -> http/response_writer.py. Other chunks go from the reader to the
connection's ChunkWriter directly.
"""

from __future__ import annotations

import asyncio
import time

from starlette.types import Receive, Scope, Send

from gateway.http import sse
from gateway.http.access_log import CLIENT_LEFT
from gateway.http.asgi_io import ChunkWriter, completes_at_once, on_disconnect
from gateway.http.errors import to_flotilla_error
from gateway.http.response_writer import ResponseWriter
from gateway.streaming.context import StreamContext
from gateway.streaming.log_event import LogEvent
from gateway.streaming.reader import Reader
from gateway.streaming.whole_answer import WholeAnswer, whole_answer
from shared.api.errors import FlotillaError, GatewayStopped, RedisUnavailable, StreamReset
from shared.platform.redis_client import RedisError
from shared.protocol.frames import FrameKind
from shared.protocol.job import NewJob
from shared.protocol.states import JobState
from shared.queue.depths import position

_FIRST_COMMENT_S = 0.4
"""A stream whose first chunk takes longer begins with a comment. Until then an error is answered
with its own status; afterwards it comes as an event in the stream."""


class JobAnswer:
    """An ASGI application: follows a job to its end; a client that leaves cancels it."""

    __slots__ = (
        "_client_left",
        "_context",
        "_queued",
        "_reader",
        "_received",
        "_request_id",
        "_response",
        "_streams",
        "error",
        "job_id",
        "tenant",
    )

    def __init__(
        self,
        context: StreamContext,
        job: NewJob,
        queued: asyncio.Future[None],
        reader: Reader,
        received: float,
        request_id: bytes | None,
    ) -> None:
        """`queued` is done once the job is in the queue; if that fails, the caller fails `reader`.

        `received`: when the request came, on the monotonic clock in seconds.
        """
        self._context = context
        # Not the job itself: its body may be large, and a stream long.
        self.job_id, self.tenant, self._streams = job.id, job.tenant, job.stream
        self._queued = queued
        self._reader = reader
        self._received = received
        self._response: ResponseWriter
        self._client_left = False
        self._request_id = request_id
        self.error = ""
        """The code of the error that the request ended with; empty: none."""

    @property
    def status(self) -> int:
        """Of the response; CLIENT_LEFT if there was none."""
        return self._response.status or CLIENT_LEFT

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, which has been read to its end."""
        self._response = ResponseWriter(send)
        stop_watching = on_disconnect(receive, self._on_client_left)
        ended = False
        try:
            ended = await (self._stream() if self._streams else self._answer_whole())
        except Exception as error:
            # A stopped gateway cancels the job; every other error means that the job has ended.
            ended = isinstance(error, FlotillaError) and not isinstance(error, GatewayStopped)
            await self._fail(to_flotilla_error(error))
        finally:
            stop_watching()
            self._context.relay.close(self._reader)
            if not ended:
                self._cancel_job()
        seconds = time.monotonic() - self._received
        self._context.metrics.answer_seconds[self._streams].observe(seconds)

    def _on_client_left(self) -> None:
        self._client_left = True
        self.error = "client_left"
        self._reader.client_left()

    # --- a streamed answer ---

    async def _stream(self) -> bool:
        """Write the answer as it grows; True once the job has ended, False if the client left."""
        settings = self._context.settings
        writer: ChunkWriter | None = None if settings.stream_pace_s else self
        while True:
            silence_s = settings.keepalive_s
            if not self._response.started:
                silence_s = min(silence_s, _FIRST_COMMENT_S)
            events = await self._reader.next(silence_s, writer)
            if self._client_left:
                return False
            data = b"".join([event.payload for event in events if event.kind == FrameKind.CHUNK])
            if data:
                self._observe_write(time.monotonic())
            elif not events:
                data = await self._progress_comment()
            if data and events and events[-1].kind == FrameKind.DONE:
                await self._send_chunk(data, more=False)
                return True
            if data:
                await self._send_chunk(data)
            if events and events[-1].last:
                await self._end_stream(events[-1])
                return True
            if settings.stream_pace_s:
                await asyncio.sleep(settings.stream_pace_s)  # what comes now leaves in one write
            elif self._reader.last_write_at:
                writer = self._response.chunk_writer()

    def write(self, data: bytes) -> bool:
        """The ChunkWriter of the first chunk: starts the response without waking a task."""
        if not completes_at_once(self._send_chunk(data)):
            return False
        if not self._reader.last_write_at:
            self._context.metrics.ttft.observe(self._context.relay.now - self._received)
        self._reader.use_writer(self._response.chunk_writer())
        return True

    def _observe_write(self, now: float) -> None:
        metrics, reader = self._context.metrics, self._reader
        if reader.last_write_at:
            metrics.itl.observe(now - reader.last_write_at)
        else:
            metrics.ttft.observe(now - self._received)
        reader.last_write_at = now

    async def _send_chunk(self, data: bytes, *, more: bool = True) -> None:
        if self._response.started:
            await self._response.write(data, more=more)
        else:
            await self._response.start(200, [*sse.HEADERS, *self._id_headers()], data, more=more)

    async def _end_stream(self, last: LogEvent) -> None:
        whole = None if last.kind == FrameKind.DONE else await self._whole_answer(last)
        if whole is not None and not self._response.started:
            await self._send_whole(whole)  # vLLM refused the request before it streamed
            return
        data = b"" if whole is None else b"data: " + whole.body + b"\n\n"
        await self._send_chunk(data, more=False)

    async def _progress_comment(self) -> bytes:
        """A comment for a client that waits in silence; empty if the job has just ended.

        Raises StreamReset if there is no such job any more.
        """
        queue = self._context.queue
        try:
            job = await queue.get(self.job_id)
            queue_position = job and await position(queue, job)
        except (RedisError, OSError):
            return sse.comment("waiting for the queue")
        if job is None:
            raise StreamReset("The queue has lost this job.")
        if job.state.terminal:
            return b""
        if not queue_position:
            return sse.comment(job.state)
        reason = self._context.wait_reason(job.pool) if job.state is JobState.QUEUED else ""
        return sse.comment(
            f"{job.state}, position {queue_position}" + (f"; {reason}" if reason else "")
        )

    # --- an answer in one piece ---

    async def _answer_whole(self) -> bool:
        """Wait for the whole answer; True once the job has ended, False if the client left."""
        while True:
            events = await self._reader.next(self._context.settings.keepalive_s)
            if self._client_left:
                return False
            if not events:
                await self._progress_comment()  # raises if the job is gone
                continue
            whole = await self._whole_answer(events[-1])
            if whole is None:
                raise StreamReset("The job has ended without an answer.")
            await self._send_whole(whole)
            return True

    async def _whole_answer(self, last: LogEvent) -> WholeAnswer | None:
        """The answer of a job whose last event this is; None if it was streamed and is complete.

        Raises the error that stands for a job that ended otherwise.
        """
        if last.kind == FrameKind.RESULT:
            status, content_type, body = last.payload
            return WholeAnswer(status, content_type.decode(), body)
        try:
            job = await self._context.queue.get(self.job_id)
        except (RedisError, OSError) as error:
            raise RedisUnavailable("The queue can't be reached; the job has ended.") from error
        if job is None:
            raise StreamReset("The job is gone.")
        return whole_answer(job)

    async def _send_whole(self, whole: WholeAnswer, *headers: tuple[bytes, bytes]) -> None:
        fields = [
            (b"content-type", whole.content_type.encode()),
            (b"content-length", str(len(whole.body)).encode()),
            *self._id_headers(),
            *headers,
        ]
        await self._response.start(whole.status, fields, whole.body, more=False)

    # --- both ---

    def _id_headers(self) -> list[tuple[bytes, bytes]]:
        job_id = self.job_id.encode()
        return [(b"x-flotilla-job-id", job_id), (b"x-request-id", self._request_id or job_id)]

    async def _fail(self, failure: FlotillaError) -> None:
        self.error = failure.code or failure.type
        if self._response.started:
            await self._response.write(sse.error(failure), more=False)
            return
        whole = WholeAnswer(failure.status, "application/json", failure.to_openai())
        await self._send_whole(whole, *failure.headers())

    def _cancel_job(self) -> None:
        if self._client_left:
            self._context.metrics.cancelled_by_disconnect.inc()
        self._context.cancellations.start(self.job_id, self.tenant, self._queued)
