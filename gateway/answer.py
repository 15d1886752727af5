"""The answer to a call that waits for its job: vLLM's bytes, as they come off the relay."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import NamedTuple

import msgpack
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway import sse
from gateway.context import Gateway
from gateway.relay import Piece, Reader
from shared.channel import FrameKind
from shared.errors import FlotillaError, RedisUnavailable, StreamReset, job_error
from shared.job import Job, NewJob
from shared.redis import RedisError
from shared.states import JobState

log = logging.getLogger("flotilla.gateway")

_CANCEL_TRIES = 10
_CANCEL_AGAIN_S = 1.0
_pending: set[asyncio.Task[None]] = set()


class Whole(NamedTuple):
    """An answer that is not streamed."""

    status: int
    content_type: str
    body: bytes


class JobAnswer(Response):
    """Follows a submitted job to its end; a client that leaves cancels it."""

    def __init__(self, gateway: Gateway, job: NewJob, reader: Reader, received: float) -> None:
        self.background = None
        self._gateway = gateway
        self._job = job
        self._reader = reader
        self._received = received
        self._left = False
        self._extra_headers = [(b"x-flotilla-job-id", job.id.encode())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.create_task(self._watch(receive))
        ended = False
        try:
            ended = await (self._stream(send) if self._job.stream else self._once(send))
        finally:
            watch.cancel()
            self._gateway.relay.close(self._reader)
            if not ended:
                self._cancel_job()
        seconds = time.monotonic() - self._received
        self._gateway.metrics.answer_seconds.labels(str(self._job.stream).lower()).observe(seconds)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._left = True
        self._reader.wake()

    async def _stream(self, send: Send) -> bool:
        """Write the answer as it grows; True once the job has ended, False if the client left."""
        metrics, silence_s = self._gateway.metrics, self._gateway.settings.keepalive_s
        opened, spoke = False, 0.0
        while True:
            try:
                pieces = await self._reader.next(silence_s)
            except FlotillaError as failure:
                await self._fail(send, failure, opened=opened)
                return True
            if self._left:
                return False
            last = pieces[-1] if pieces and pieces[-1].last else None
            data = b"".join([piece.payload for piece in pieces if piece.kind == FrameKind.CHUNK])
            if data:
                now = time.monotonic()
                if spoke:
                    metrics.itl.observe(now - spoke)
                else:
                    metrics.ttft.observe(now - self._received)
                spoke = now
            elif not pieces:
                try:
                    data = await self._news()
                except FlotillaError as failure:
                    await self._fail(send, failure, opened=opened)
                    return True
            if data:
                if not opened:
                    opened = True
                    await self._open(send)
                await send({"type": "http.response.body", "body": data, "more_body": True})
            if last is not None:
                await self._end_stream(send, last, opened=opened)
                return True

    async def _end_stream(self, send: Send, last: Piece, *, opened: bool) -> None:
        try:
            whole = None if last.kind == FrameKind.DONE else await self._whole(last)
        except FlotillaError as failure:
            await self._fail(send, failure, opened=opened)
            return
        if whole is not None and not opened:
            await self._send_whole(send, whole)  # vLLM refused the request before it streamed
            return
        if not opened:
            await self._open(send)
        data = b"" if whole is None else b"data: " + whole.body + b"\n\n"
        await send({"type": "http.response.body", "body": data, "more_body": False})

    async def _once(self, send: Send) -> bool:
        """Wait for the whole answer; True once the job has ended, False if the client left."""
        try:
            while True:
                pieces = await self._reader.next(self._gateway.settings.keepalive_s)
                if self._left:
                    return False
                if not pieces:
                    await self._news()
                    continue
                whole = await self._whole(pieces[-1])
                if whole is None:
                    raise StreamReset("The job has ended without an answer.")
                await self._send_whole(send, whole)
                return True
        except FlotillaError as failure:
            await self._fail(send, failure, opened=False)
            return True

    async def _whole(self, last: Piece) -> Whole | None:
        """The answer that a job's last piece tells of; None if it was streamed and is complete.

        Raises the error that stands for a job that ended otherwise.
        """
        if last.kind == FrameKind.RESULT:
            status, content_type, body = msgpack.unpackb(last.payload, raw=True)
            return Whole(status, content_type.decode(), body)
        try:
            job = await self._gateway.queue.get(self._job.id)
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
            job = await self._gateway.queue.get(self._job.id)
            position = job and await self._gateway.queue.position(job)
        except (RedisError, OSError):
            return sse.comment("waiting for the queue")
        if job is None:
            raise StreamReset("The queue has lost this job.")
        if job.state.terminal:
            return b""
        return sse.comment(f"{job.state}, position {position}" if position else job.state)

    async def _open(self, send: Send) -> None:
        headers = [*sse.HEADERS, *self._extra_headers]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _send_whole(self, send: Send, whole: Whole) -> None:
        headers = [
            (b"content-type", whole.content_type.encode()),
            (b"content-length", str(len(whole.body)).encode()),
            *self._extra_headers,
        ]
        await send({"type": "http.response.start", "status": whole.status, "headers": headers})
        await send({"type": "http.response.body", "body": whole.body, "more_body": False})

    async def _fail(self, send: Send, failure: FlotillaError, *, opened: bool) -> None:
        if opened:
            data = sse.error(failure)
            await send({"type": "http.response.body", "body": data, "more_body": False})
            return
        self._extra_headers += failure.headers()
        await self._send_whole(send, Whole(failure.status, "application/json", failure.to_openai()))

    def _cancel_job(self) -> None:
        self._gateway.metrics.cancelled_by_disconnect.inc()
        task = asyncio.create_task(self._insist_on_cancel())
        _pending.add(task)
        task.add_done_callback(_pending.discard)

    async def _insist_on_cancel(self) -> None:
        for _ in range(_CANCEL_TRIES):
            try:
                await self._gateway.queue.cancel(self._job.id, self._job.tenant)
            except (RedisError, OSError):
                await asyncio.sleep(_CANCEL_AGAIN_S)
            else:
                return
        log.warning("%s could not be cancelled", self._job.id)


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
    raise job_error(job.error_code)
