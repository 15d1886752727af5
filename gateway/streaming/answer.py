"""The answer to a call that waits for its job: vLLM's bytes, as they come off the relay."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine
from typing import Any, NamedTuple

from starlette.types import Receive, Scope, Send

from gateway.http import sse
from gateway.http.access_log import CLIENT_LEFT
from gateway.http.asgi_io import (
    ChunkWriter,
    chunk_writer,
    completes_at_once,
    on_disconnect,
    start_response_at_once,
)
from gateway.http.errors import to_flotilla_error
from gateway.streaming.context import StreamContext
from gateway.streaming.reader import LogEvent, Reader
from shared.api.errors import (
    FlotillaError,
    GatewayStopped,
    RedisUnavailable,
    StreamReset,
    job_error,
)
from shared.platform.redis_client import RedisError
from shared.protocol.frames import FrameKind
from shared.protocol.job import Job, NewJob
from shared.protocol.states import JobState
from shared.queue.depths import position

log = logging.getLogger("flotilla.gateway")

_FIRST_COMMENT_S = 0.4
"""A stream whose first chunk takes longer begins with a comment. Until then an error is answered
with its own status; afterwards it comes as an event in the stream."""
_CANCEL_TRIES = 10
_CANCEL_AGAIN_S = 1.0
_pending: set[asyncio.Task[None]] = set()


class Whole(NamedTuple):
    """An answer that is not streamed."""

    status: int
    content_type: str
    body: bytes


class JobAnswer:
    """An ASGI application: follows a job to its end; a client that leaves cancels it."""

    __slots__ = (
        "_context",
        "_left",
        "_opened",
        "_queued",
        "_reader",
        "_received",
        "_request_id",
        "_send",
        "_streams",
        "error",
        "job_id",
        "status",
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
        """`queued` is done when the job is; should that fail, the reader is told by the caller."""
        self._context = context
        # Not the job itself: its body may be large, and a stream long.
        self.job_id, self.tenant, self._streams = job.id, job.tenant, job.stream
        self._queued = queued
        self._reader = reader
        self._received = received
        self._send: Any = None
        self._opened = False
        self._left = False
        self._request_id = request_id
        self.status = CLIENT_LEFT
        """Of the response, once it has begun."""
        self.error = ""
        """The code of what went wrong, if so."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        forget = on_disconnect(receive, self._leave)
        ended = False
        try:
            ended = await (self._stream() if self._streams else self._once())
        except Exception as error:
            # A stopped gateway cancels the job; every other error tells of the job's end.
            ended = isinstance(error, FlotillaError) and not isinstance(error, GatewayStopped)
            await self._fail(to_flotilla_error(error))
        finally:
            forget()
            self._context.relay.close(self._reader)
            if not ended:
                self._cancel_job()
        seconds = time.monotonic() - self._received
        self._context.metrics.answer_seconds[self._streams].observe(seconds)

    def _leave(self) -> None:
        self._left = True
        self.error = "client_left"
        self._reader.wake()

    async def _stream(self) -> bool:
        """Write the answer as it grows; True once the job has ended, False if the client left."""
        settings = self._context.settings
        sink: ChunkWriter | None = None if settings.stream_pace_s else self
        while True:
            silence_s = settings.keepalive_s
            if not self._opened:
                silence_s = min(silence_s, _FIRST_COMMENT_S)
            pieces = await self._reader.next(silence_s, sink)
            if self._left:
                return False
            data = b"".join([piece.payload for piece in pieces if piece.kind == FrameKind.CHUNK])
            if data:
                self._observe(time.monotonic())
            elif not pieces:
                data = await self._news()
            if data and pieces and pieces[-1].kind == FrameKind.DONE:
                await self._begin_or_go_on(data, more=False)
                return True
            if data:
                await self._begin_or_go_on(data)
            if pieces and pieces[-1].last:
                await self._end_stream(pieces[-1])
                return True
            if settings.stream_pace_s:
                await asyncio.sleep(settings.stream_pace_s)  # what comes now leaves in one write
            elif self._reader.last_write_at:
                sink = chunk_writer(self._send)

    def write(self, data: bytes) -> bool:
        """A ChunkWriter for a stream's first chunk, until it knows better: no task wakes for it."""
        if not completes_at_once(self._begin_or_go_on(data)):
            return False
        if not self._reader.last_write_at:
            self._context.metrics.ttft.observe(self._context.relay.now - self._received)
        self._reader.use_writer(chunk_writer(self._send))
        return True

    def _observe(self, now: float) -> None:
        metrics, reader = self._context.metrics, self._reader
        if reader.last_write_at:
            metrics.itl.observe(now - reader.last_write_at)
        else:
            metrics.ttft.observe(now - self._received)
        reader.last_write_at = now

    async def _end_stream(self, last: LogEvent) -> None:
        whole = None if last.kind == FrameKind.DONE else await self._whole(last)
        if whole is not None and not self._opened:
            await self._send_whole(whole)  # vLLM refused the request before it streamed
            return
        data = b"" if whole is None else b"data: " + whole.body + b"\n\n"
        await self._begin_or_go_on(data, more=False)

    async def _once(self) -> bool:
        """Wait for the whole answer; True once the job has ended, False if the client left."""
        while True:
            pieces = await self._reader.next(self._context.settings.keepalive_s)
            if self._left:
                return False
            if not pieces:
                await self._news()
                continue
            whole = await self._whole(pieces[-1])
            if whole is None:
                raise StreamReset("The job has ended without an answer.")
            await self._send_whole(whole)
            return True

    async def _whole(self, last: LogEvent) -> Whole | None:
        """The answer that a job's last piece tells of; None if it was streamed and is complete.

        Raises the error that stands for a job that ended otherwise.
        """
        if last.kind == FrameKind.RESULT:
            status, content_type, body = last.payload
            return Whole(status, content_type.decode(), body)
        try:
            job = await self._context.queue.get(self.job_id)
        except (RedisError, OSError) as error:
            raise RedisUnavailable("The queue can't be reached; the job has ended.") from error
        if job is None:
            raise StreamReset("The job is gone.")
        return whole_answer(job)

    async def _news(self) -> bytes:
        """A comment for a client that waits in silence; nothing if the end is just coming.

        Raises StreamReset if it waits in vain.
        """
        try:
            job = await self._context.queue.get(self.job_id)
            place = job and await position(self._context.queue, job)
        except (RedisError, OSError):
            return sse.comment("waiting for the queue")
        if job is None:
            raise StreamReset("The queue has lost this job.")
        if job.state.terminal:
            return b""
        news = f"{job.state}, position {place}" if place else job.state
        if place and job.state is JobState.QUEUED:
            waits_for = self._context.wait_reason(job.pool)
            news += f"; {waits_for}" if waits_for else ""
        return sse.comment(news)

    async def _begin_or_go_on(self, data: bytes, *, more: bool = True) -> None:
        if self._opened:
            await self._write(data, more=more)
        else:
            await self._begin(200, [*sse.HEADERS, *self._identity()], data, more=more)

    async def _begin(
        self, status: int, headers: list[tuple[bytes, bytes]], data: bytes, *, more: bool
    ) -> None:
        self.status = status
        self._opened = start_response_at_once(self._send, status, headers, data, more=more)
        if not self._opened:
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            self._opened = True
            await self._write(data, more=more)

    def _write(self, data: bytes, *, more: bool = True) -> Coroutine[Any, Any, None]:
        sending: Coroutine[Any, Any, None] = self._send(
            {"type": "http.response.body", "body": data, "more_body": more}
        )
        return sending

    def _identity(self) -> list[tuple[bytes, bytes]]:
        job_id = self.job_id.encode()
        return [(b"x-flotilla-job-id", job_id), (b"x-request-id", self._request_id or job_id)]

    async def _send_whole(self, whole: Whole, *headers: tuple[bytes, bytes]) -> None:
        fields = [
            (b"content-type", whole.content_type.encode()),
            (b"content-length", str(len(whole.body)).encode()),
            *self._identity(),
            *headers,
        ]
        await self._begin(whole.status, fields, whole.body, more=False)

    async def _fail(self, failure: FlotillaError) -> None:
        self.error = failure.code or failure.type
        if self._opened:
            await self._write(sse.error(failure), more=False)
            return
        whole = Whole(failure.status, "application/json", failure.to_openai())
        await self._send_whole(whole, *failure.headers())

    def _cancel_job(self) -> None:
        if self._left:
            self._context.metrics.cancelled_by_disconnect.inc()
        task = asyncio.create_task(self._insist_on_cancel())
        _pending.add(task)
        task.add_done_callback(_pending.discard)

    async def _insist_on_cancel(self) -> None:
        await asyncio.wait({self._queued})  # what is not queued yet can't be cancelled
        for _ in range(_CANCEL_TRIES):
            try:
                await self._context.queue.cancel(self.job_id, self.tenant)
            except (RedisError, OSError):
                await asyncio.sleep(_CANCEL_AGAIN_S)
            else:
                return
        log.warning("%s could not be cancelled", self.job_id)


async def cancellations_sent() -> None:
    """Wait until every client that has left has had its job cancelled."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CANCEL_AGAIN_S):
            await asyncio.gather(*_pending, return_exceptions=True)


def whole_answer(job: Job) -> Whole | None:
    """What the worker answered; None if that was streamed. Raises the error of any other end."""
    if job.result:
        return Whole(job.status, job.content_type, job.result)
    if job.state is JobState.COMPLETED or (job.state is JobState.FAILED and job.status == 200):
        return None
    raise job_error(job.error_code, job.id)
