"""The answer to a call that waits for its job: vLLM's bytes, as the job's reader delivers them. The
job is submitted for the call, or an earlier one has made it.

Token path: gateway/core/reader.py -> here for the first chunk of a stream, and for any chunk of a
client that reads slowly -> http/asgi_io.py. Other chunks go from the reader to the
connection's ChunkWriter directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from starlette.types import Receive, Scope, Send

from gateway.core.call import new_call
from gateway.core.context import Gateway
from gateway.core.incoming import Answer, Incoming
from gateway.core.new_call import NewCall, Unwrap
from gateway.core.progress import Progress, read_progress
from gateway.core.rate_limiter import LimitedAnswer, RateLimiter
from gateway.core.reader import LogEvent, Reader, ReadMode
from gateway.core.response_errors import (
    error_object,
    failed_response,
    number_behind,
    stream_error,
)
from gateway.core.resume import ReceivedEvents, StreamPosition
from gateway.core.send_body import send_body
from gateway.core.stream_context import StreamContext
from gateway.http import server_events as sse
from gateway.http.access_log import CLIENT_LEFT
from gateway.http.asgi_io import ChunkWriter, ResponseWriter, completes_at_once, on_disconnect
from gateway.http.error_response import to_flotilla_error
from gateway.http.held_bytes import BODIES
from shared.api.endpoint import Endpoint, ErrorStyle
from shared.api.error_shapes import error_body, error_style
from shared.job.errors import (
    NO_RETRY,
    FlotillaError,
    JobFailed,
    RedisUnavailable,
    StreamReset,
    is_final,
    job_error,
)
from shared.job.job import Job, NewJob
from shared.job.states import JobState
from shared.platform import logs, request_span
from shared.store.answers import Body, read_again
from shared.store.errors import StoreError
from shared.store.queue import Queue

_REPLAYED = (b"idempotent-replayed", b"true")
_END = LogEvent(0, JobState.COMPLETED, b"")
"""For a job that had ended when it was read, however: its record says that."""


class WholeAnswer(NamedTuple):
    """An HTTP response, without the headers that the gateway adds."""

    status: int
    content_type: str
    body: Body
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Further ones that vLLM gave it."""


def whole_answer(queue: Queue, job: Job) -> WholeAnswer | None:
    """The worker's answer; None if that was streamed. Raises the error of any other end."""
    if job.result_bytes:
        headers = tuple((k.encode("latin-1"), v.encode("latin-1")) for k, v in job.headers.items())
        return WholeAnswer(job.status, job.content_type, Body(b"", queue, job), headers)
    if job.state is JobState.COMPLETED or (job.state is JobState.FAILED and job.status == 200):
        return None
    raise job_error(job.error_code, job.id)


async def answer_at_end(queue: Queue, job_id: str, last: LogEvent) -> WholeAnswer | None:
    """The answer of a job whose last event this is; None if it was streamed and is complete.

    Raises the error of a job that ended otherwise.
    """
    if last.is_streamed:
        return None
    if len(last.details) > 2:
        status, content_type, body = last.details[2:]
        return WholeAnswer(status, content_type.decode(), Body(body))
    try:
        [job] = await read_again(lambda: queue.get(job_id))
    except StoreError as error:
        raise RedisUnavailable("The queue can't be reached; the job has ended.") from error
    if job is None:
        raise StreamReset("The job is gone.")
    if not job.state.terminal:
        raise StreamReset("Redis has lost the end of this job; try again.")
    return whole_answer(queue, job)


class _NotingWriter:
    """A ChunkWriter that keeps the last chunk, which has the number of the stream's last event."""

    __slots__ = ("last", "writer")

    def __init__(self) -> None:
        self.last = b""
        self.writer: ChunkWriter

    def write(self, data: bytes, /) -> bool:
        """See ChunkWriter."""
        written = self.writer.write(data)
        if written:
            self.last = data
        return written


class JobAnswer:
    """An ASGI application: follows a job to its end, or until its client leaves."""

    __slots__ = (
        "_client_left",
        "_context",
        "_ended",
        "_errors",
        "_had",
        "_headers",
        "_notes",
        "_opening",
        "_queued",
        "_reader",
        "_received",
        "_repeatable",
        "_request_id",
        "_response",
        "_span",
        "_streams",
        "_told_at",
        "_told_s",
        "error",
        "job_id",
        "tenant",
    )

    def __init__(
        self,
        context: StreamContext,
        job: NewJob | Job,
        reader: Reader,
        incoming: Incoming,
        resumed_at: StreamPosition | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """If the job does not get into the queue (`reader.queued`), the caller fails `reader`.

        `resumed_at`: the job was submitted by an earlier request, whose answer is taken up again
        here. `headers`: further ones of the response.
        """
        self._context = context
        # Not the job itself: its body may be large, and a stream long.
        self.job_id, self.tenant, self._streams = job.id, job.tenant, job.stream
        self._errors = error_style(job.endpoint)
        self._notes = _NotingWriter() if self._errors is ErrorStyle.RESPONSE else None
        self._ended = isinstance(job, Job) and job.state.terminal
        # Without an idempotency key a repetition of the request makes another job.
        self._repeatable = isinstance(job, NewJob) and job.idempotency is None
        self._had = None if resumed_at is None else ReceivedEvents(resumed_at)
        self._headers = headers
        self._opening = resumed_at.opening if resumed_at else b""
        self._told_s = self._told_at = 0.0  # the wait that the client was told first, and when
        self._queued = reader.queued
        self._reader = reader
        self._received = incoming.received
        self._response: ResponseWriter
        self._client_left = False
        self._request_id = incoming.request_id
        self._span = request_span.current()
        self.error = ""
        """The code of the error that the request ended with; empty: none."""

    @property
    def status(self) -> int:
        """The status of the response; CLIENT_LEFT if there was none."""
        return self._response.status or CLIENT_LEFT

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, which has been read to its end."""
        self._response = ResponseWriter(send)
        stop_watching = on_disconnect(receive, self._on_client_left)
        ended = False
        try:
            ended = await (self._stream() if self._streams else self._answer_whole())
        except Exception as error:
            ended = isinstance(error, JobFailed)
            await self._fail(to_flotilla_error(error))
        finally:
            stop_watching()
            self._context.relay.close(self._reader, leave=not ended)
            if self._client_left and not ended:
                self._context.metrics.cancelled_by_disconnect.inc()

    def _on_client_left(self) -> None:
        self._client_left = True
        self.error = "client_left"
        self._reader.client_left()

    # --- a streamed answer ---

    async def _stream(self) -> bool:
        """Write the answer as it grows; True once the job has ended, False if the client left."""
        settings = self._context.settings
        had = self._had
        writer: ChunkWriter | None = None if had else self
        if self._opening:
            await self._send_chunk(self._opening)
        while True:
            silence_s = settings.keepalive_s
            if not self._response.started and (had is None or had.complete):
                silence_s = min(silence_s, settings.stream_status_wait_s)
            events = await self._reader.next(silence_s, writer)
            if self._client_left:
                return False
            data = b"".join([event.output for event in events])
            end = events[-1] if events and events[-1].last else None
            if had is not None:
                all_read = self._reader.is_current and end is None
                data = had.rest(data, all_read=all_read, ended=self._ended)
            if data:
                self._observe_write(time.monotonic())
            elif not events and (had is None or had.complete or had.position.awaited):
                progress = await read_progress(self._context, self.job_id, self._queued)
                data = progress.comment
                self._tell(progress)
            del events  # a client may be slow to read `data`
            if data and end is not None and end.is_streamed:
                await self._send_chunk(data, more=False)
                return True
            if data:
                await self._send_chunk(data)
            if end is not None:
                await self._end_stream(end)
                return True
            if self._reader.last_write_at:
                writer = self._chunk_writer()

    def write(self, data: bytes) -> bool:
        """The ChunkWriter of the first chunk: starts the response without waking a task."""
        if not completes_at_once(self._send_chunk(data)):
            return False
        if not self._reader.last_write_at:
            self._observe_first_write(self._context.relay.now)
        self._reader.use_writer(self._chunk_writer())
        return True

    def _chunk_writer(self) -> ChunkWriter:
        writer = self._response.chunk_writer()
        if self._notes is None:
            return writer
        self._notes.writer = writer
        return self._notes

    def _observe_write(self, now: float) -> None:
        reader = self._reader
        if reader.last_write_at:
            self._context.metrics.itl.observe(now - reader.last_write_at)
        else:
            self._observe_first_write(now)
        reader.last_write_at = now

    def _tell(self, progress: Progress) -> None:
        """The client is about to read how long its job may wait."""
        if not self._response.started:
            self._headers = [*self._headers, *progress.headers]
        if not self._told_s and progress.told_s:
            self._told_s, self._told_at = progress.told_s, time.monotonic()

    def _observe_first_write(self, now: float) -> None:
        if self._told_s:
            waited_s = now - self._told_at
            self._context.metrics.told_wait.observe(waited_s / self._told_s)
        if self._had is None:
            self._context.metrics.ttft.observe(now - self._received)
        if self._span is not None:
            self._span.output_sent()

    async def _send_chunk(self, data: bytes, *, more: bool = True) -> None:
        if self._response.started:
            await self._response.write(data, more=more)
        else:
            await self._response.start(200, [*sse.HEADERS, *self._id_headers()], data, more=more)
        if self._notes is not None and data and not data.startswith(b":"):
            self._notes.last = data

    async def _end_stream(self, last: LogEvent) -> None:
        had = self._had
        try:
            whole = await answer_at_end(self._context.queue, self.job_id, last)
        except JobFailed as failure:
            if not (self._response.started or (had and had.stream_begun)):
                raise
            # The client has begun to read a stream, so the error is a part of it.
            self.error = failure.code or failure.type
            data = await self._error_event(failure)
        else:
            if whole is not None and not self._response.started and not (had and had.stream_begun):
                await self._send_end(whole)  # vLLM refused the request before it streamed
                return
            data = b""
            if whole is not None:  # an error, which is short
                data = await self._refusal_event(whole)
        if had is not None and not self._opening:
            data = had.behind(data)
            had.check_end()
        await self._send_chunk(data, more=False)

    async def _error_event(self, failure: FlotillaError) -> bytes:
        """An error as the end of a stream that has begun."""
        if self._errors is not ErrorStyle.RESPONSE:
            return sse.error(failure, self._errors)
        error = json.loads(failure.to_openai())["error"]
        if isinstance(failure, JobFailed):
            return await self._failed_response(error, failure.status)
        after = self._had.position.after if self._had else 0
        return stream_error(error, max(self._next_number(), after))

    async def _refusal_event(self, whole: WholeAnswer) -> bytes:
        """As `_error_event`, of the engine's own error."""
        body = whole.body.whole or b""
        if self._errors is not ErrorStyle.RESPONSE:
            return sse.error_event(body, self._errors)
        error = {}
        with contextlib.suppress(ValueError, LookupError, TypeError):
            error = dict(json.loads(body)["error"])
        return await self._failed_response(error, whole.status)

    async def _failed_response(self, error: Mapping[str, Any], status: int) -> bytes:
        queue, shown, number = self._context.queue, error_object(error, status), self._next_number()
        with contextlib.suppress(StoreError):
            [job] = await queue.get(self.job_id)
            body, _ = await queue.stored_request(self.job_id)
            if job is not None and body:
                return failed_response(job, body, shown, number)
        return stream_error(shown | {"type": "server_error", "param": None}, number)

    def _next_number(self) -> int:
        """Of the next event in the stream of a response."""
        if self._notes is not None and self._notes.last:
            return number_behind(self._notes.last)
        return self._had.taken if self._had else 0

    # --- an answer in one piece ---

    async def _answer_whole(self) -> bool:
        """Wait for the whole answer; True once the job has ended, False if the client left."""
        if self._had is not None:
            self._had.check_end()
        silence_s = self._context.settings.keepalive_s
        while True:
            events = [_END] if self._ended else await self._reader.next(silence_s)
            if self._client_left:
                return False
            if not events:
                await read_progress(self._context, self.job_id, self._queued)
                continue
            whole = await answer_at_end(self._context.queue, self.job_id, events[-1])
            if whole is None:
                raise StreamReset("The job has ended without an answer.")
            await self._send_end(whole)
            return True

    async def _send_end(self, whole: WholeAnswer) -> None:
        """Send the answer of the engine, which may be an error."""
        final = whole.status >= 400 and (not self._repeatable or is_final(whole.status))
        await self._send_whole(whole, *([NO_RETRY] if final else []))

    async def _send_whole(self, whole: WholeAnswer, *headers: tuple[bytes, bytes]) -> None:
        if self._span is not None:
            self._span.output_sent()
        fields = [
            (b"content-type", whole.content_type.encode()),
            *self._id_headers(),
            *whole.headers,
            *headers,
        ]
        await send_body(self._response, whole.status, fields, whole.body, lambda: self._client_left)

    # --- both ---

    def _id_headers(self) -> list[tuple[bytes, bytes]]:
        job_id = self.job_id.encode()
        request_id = self._request_id or job_id
        ids = [(b"x-flotilla-job-id", job_id), (b"x-request-id", request_id), *self._headers]
        if self._errors is ErrorStyle.ANTHROPIC:  # the name that Anthropic's SDK reads
            ids.append((b"request-id", request_id))
        return ids

    async def _fail(self, failure: FlotillaError) -> None:
        self.error = failure.code or failure.type
        if self._response.started and not self._streams:
            raise failure  # a part of the answer is missing: the server closes the connection
        if self._response.started:
            await self._response.write(await self._error_event(failure), more=False)
            return
        if isinstance(failure, JobFailed) and not self._repeatable:
            failure.final = True
        body = Body(error_body(failure, self._errors))
        whole = WholeAnswer(failure.status, "application/json", body)
        await self._send_whole(whole, *failure.headers())


async def answer_call(gateway: Gateway, incoming: Incoming, source: Endpoint | Unwrap) -> Answer:
    """Submit the request's job and return its answer. Raises as `new_call`, and StreamReset."""
    call = await new_call(gateway, incoming, source)
    if call.taken is None:
        return await _answer(gateway, incoming, call)
    limiter = gateway.of(RateLimiter)
    try:
        answer = await _answer(gateway, incoming, call, call.taken.headers())
    except BaseException:
        limiter.release(call.taken)
        raise
    return LimitedAnswer(answer, limiter, call.taken)


async def _answer(
    gateway: Gateway,
    incoming: Incoming,
    call: NewCall,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> Answer:
    if call.joined:
        return await _replayed(gateway, call.joined, call, incoming)
    job, request_id = call.job, incoming.request_id
    logs.bind_contextvars(
        job_id=job.id, request_id=request_id.decode("ascii") if request_id else job.id
    )
    mode = ReadMode.CHUNKS if job.stream else ReadMode.END
    reader = gateway.relay.open(job.id, mode, is_new=True)

    def on_error(error: Exception) -> None:
        failure = to_flotilla_error(error)
        gateway.metrics.refused.labels(failure.code or failure.type).inc()
        reader.fail(failure)

    # Not awaited: if the queue refuses the job, the reader fails.
    queued = gateway.submitter.submit(job, on_error=on_error)
    reader.queued = queued
    if BODIES.has(incoming.scope):  # a stream may be long
        queued.add_done_callback(lambda _: BODIES.release(incoming.scope))
    if call.keyed:
        await asyncio.wait({queued})
        joined_id = None if queued.exception() else queued.result()
        if joined_id is not None:
            gateway.relay.close(reader)
            return await _replayed(gateway, joined_id, call, incoming)
    if call.background:
        return await call.background.background_answer(job, queued, reader, incoming)
    return JobAnswer(gateway.streams, job, reader, incoming, headers=headers)


def answer_of(
    gateway: Gateway,
    job: Job,
    position: StreamPosition,
    incoming: Incoming,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> JobAnswer:
    """The answer of a job that an earlier request has submitted; see JobAnswer."""
    span = request_span.current()
    if span is not None:
        span.join(job.origin.traceparent)
    reader = gateway.relay.open(job.id, ReadMode.CHUNKS if job.stream else ReadMode.END)
    return JobAnswer(gateway.streams, job, reader, incoming, position, headers)


async def _replayed(gateway: Gateway, job_id: str, call: NewCall, incoming: Incoming) -> Answer:
    """The answer of the job that an earlier request with the same idempotency key has made."""
    [joined] = await gateway.queue.get(job_id)
    if joined is None:
        raise StreamReset("The job of this Idempotency-Key is gone; send the request again.")
    logs.bind_contextvars(job_id=joined.id)
    if call.background and not joined.stream:
        return await call.background.replayed_answer(joined, incoming, [_REPLAYED])
    return answer_of(gateway, joined, StreamPosition(), incoming, [_REPLAYED])
