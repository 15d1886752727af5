"""The answer to a call that waits for its job: vLLM's bytes, as the job's reader delivers them.

Token path: gateway/core/reader.py -> here for the first chunk of a stream, and for any chunk of a
client that reads slowly -> http/asgi_io.py. Other chunks go from the reader to the
connection's ChunkWriter directly.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from starlette.types import Receive, Scope, Send

from gateway.core.incoming import Incoming
from gateway.core.log_event import LogEvent
from gateway.core.progress import Progress, ToldWait, read_progress
from gateway.core.reader import Reader
from gateway.core.received_events import ReceivedEvents, StreamPosition
from gateway.core.send_body import send_body
from gateway.core.stream_context import StreamContext
from gateway.core.whole_answer import WholeAnswer, answer_at_end
from gateway.http import server_events as sse
from gateway.http.access_log import CLIENT_LEFT
from gateway.http.asgi_io import ChunkWriter, ResponseWriter, completes_at_once, on_disconnect
from gateway.http.error_response import to_flotilla_error
from shared.api.endpoint import ErrorStyle
from shared.api.error_shapes import error_body, error_style
from shared.job.errors import FlotillaError, JobFailed, StreamReset
from shared.job.frames import FrameKind
from shared.job.job import Job, NewJob
from shared.platform import request_span
from shared.store.stored_body import Body

_FIRST_COMMENT_S = 0.4
"""A stream whose first chunk takes longer begins with a comment. Until then an error is answered
with its own status; afterwards it comes as an event in the stream."""


_END = LogEvent(0, FrameKind.ENDED, b"")
"""For a job that had ended when it was read."""


class JobAnswer:
    """An ASGI application: follows a job to its end, or until its client leaves."""

    __slots__ = (
        "_client_left",
        "_context",
        "_ended",
        "_errors",
        "_had",
        "_headers",
        "_opening",
        "_queued",
        "_reader",
        "_received",
        "_request_id",
        "_response",
        "_span",
        "_streams",
        "_told",
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
        self._ended = isinstance(job, Job) and job.state.terminal
        self._had = None if resumed_at is None else ReceivedEvents(resumed_at)
        self._headers = headers
        self._opening = resumed_at.opening if resumed_at else b""
        self._told: ToldWait | None = None
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
            self._context.relay.close(self._reader)
            if not ended:
                self._leave_job()
        if self._had is None and self._response.status != 202:
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
        had = self._had
        writer: ChunkWriter | None = None if settings.stream_pace_s or had else self
        if self._opening:
            await self._send_chunk(self._opening)
        while True:
            silence_s = settings.keepalive_s
            if not self._response.started:
                silence_s = min(silence_s, _FIRST_COMMENT_S)
            events = await self._reader.next(silence_s, writer)
            if self._client_left:
                return False
            data = b"".join([event.payload for event in events if event.kind == FrameKind.CHUNK])
            if had is not None:
                all_read = self._reader.is_current and not (events and events[-1].last)
                data = had.rest(data, all_read=all_read, ended=self._ended)
            if data:
                self._observe_write(time.monotonic())
            elif not events and (had is None or had.complete or had.position.awaited):
                progress = await read_progress(self._context, self.job_id, self._queued)
                data = progress.comment
                self._tell(progress)
            if data and events and events[-1].kind == FrameKind.DONE:
                await self._send_chunk(data, more=False)
                return True
            if data:
                await self._send_chunk(data)
            if events and events[-1].last:
                await self._end_stream(events[-1])
                return True
            if settings.stream_pace_s:
                await asyncio.sleep(settings.stream_pace_s)  # what comes meanwhile is one write
            elif self._reader.last_write_at:
                writer = self._response.chunk_writer()

    def write(self, data: bytes) -> bool:
        """The ChunkWriter of the first chunk: starts the response without waking a task."""
        if not completes_at_once(self._send_chunk(data)):
            return False
        if not self._reader.last_write_at:
            self._observe_first_write(self._context.relay.now)
        self._reader.use_writer(self._response.chunk_writer())
        return True

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
        self._told = self._told or progress.told(self._context, self.tenant)

    def _observe_first_write(self, now: float) -> None:
        if self._told is not None:
            self._told.ended(now)
        if self._had is None:
            self._context.metrics.ttft.observe(now - self._received)
        if self._span is not None:
            self._span.output_sent()

    async def _send_chunk(self, data: bytes, *, more: bool = True) -> None:
        if self._response.started:
            await self._response.write(data, more=more)
        else:
            await self._response.start(200, [*sse.HEADERS, *self._id_headers()], data, more=more)

    async def _end_stream(self, last: LogEvent) -> None:
        had = self._had
        try:
            whole = await answer_at_end(self._context.queue, self.job_id, last)
        except JobFailed as failure:
            if had is None or self._response.started or not had.stream_begun:
                raise
            # The client has begun to read a stream, so the error is a part of it.
            self.error = failure.code or failure.type
            data = sse.error(failure, self._errors)
        else:
            if whole is not None and not self._response.started and not (had and had.stream_begun):
                await self._send_whole(whole)  # vLLM refused the request before it streamed
                return
            data = b""
            if whole is not None:  # an error, which is short
                data = sse.error_event(whole.body.whole or b"", self._errors)
        if had is not None and not had.position.awaited:
            data = had.behind(data)
            had.check_end()
        await self._send_chunk(data, more=False)

    # --- an answer in one piece ---

    async def _answer_whole(self) -> bool:
        """Wait for the whole answer; True once the job has ended, False if the client left."""
        if self._had is not None:
            self._had.check_end()
        while True:
            events = [_END] if self._ended else await self._reader.next(self._silence_s())
            if self._client_left:
                return False
            if not events:
                if await self._on_silence():
                    return False
                continue
            whole = await answer_at_end(self._context.queue, self.job_id, events[-1])
            if whole is None:
                raise StreamReset("The job has ended without an answer.")
            await self._send_whole(whole)
            return True

    def _silence_s(self) -> float:
        """The time to wait for the answer before `_on_silence`."""
        return self._context.settings.keepalive_s

    async def _on_silence(self) -> bool:
        """There is no answer yet; True if the request is answered without it."""
        await read_progress(self._context, self.job_id, self._queued)
        return False

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
            await self._response.write(sse.error(failure, self._errors), more=False)
            return
        body = Body(error_body(failure, self._errors))
        whole = WholeAnswer(failure.status, "application/json", body)
        await self._send_whole(whole, *failure.headers())

    def _leave_job(self) -> None:
        if self._client_left:
            self._context.metrics.cancelled_by_disconnect.inc()
        self._context.unwatcher.start(self.job_id, self._queued)
