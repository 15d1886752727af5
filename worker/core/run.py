"""The run of one job, from its claim to its end: call the engine's ASGI application in this
process, without a socket, pass its output on, report how it ended.

Request path: `worker/core/jobs.py` -> here -> the engine's ASGI application.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message

from shared.api.endpoint import BodyKind, ErrorStyle
from shared.api.endpoints import ENDPOINTS
from shared.api.error_shapes import as_anthropic, as_anthropic_event, error_style
from shared.api.multipart import content_type_of
from shared.job.errors import AnswerTooLarge, FlotillaError, UnknownRoute
from shared.job.result import MAX_RESULT_BYTES, JobResult
from shared.platform import tracing
from shared.store.errors import until_answered
from shared.store.queue import HeldJob
from worker.core.edits import answer_edit, engine_body, is_error
from worker.core.output import EditedOutput, Output
from worker.core.resume import ContinuedOutput
from worker.core.trace import RunTrace
from worker.engines.interface import JOURNAL, TENANT

if TYPE_CHECKING:
    from worker.core.jobs import Jobs

log = logging.getLogger("flotilla.job")

_ABORT_S = 10.0
"""So long the engine may take to end an aborted request before its task is cancelled."""
KEPT_HEADERS = frozenset({b"metadata"})
"""Headers of responses that clients get. `metadata`: where each embedding is, in an answer of
bytes."""
_BYTES_A_TURN = 32 << 10
"""After so many bytes of a stream other tasks have a turn: vLLM needs 10 ms to make as much with 20
alternatives for each token. It does not wait while it has outputs, which took 12 s with 64 choices.
"""
_NO_ANSWER = (
    b'{"error":{"message":"The engine could not answer.",'
    b'"type":"InternalServerError","param":null,"code":500}}'
)


class Exchange:
    """One request to an application and its response.

    `on_chunk` is called with each part of a body that is an event stream; any other body is
    gathered in `body`. Setting `disconnect` ends the request as a client that disconnects does.
    """

    def __init__(self, on_chunk: Callable[[bytes], None] | None = None) -> None:
        self._on_chunk = on_chunk
        self.status = 0
        self.content_type = ""
        self.headers: tuple[tuple[str, str], ...] = ()
        """Those of KEPT_HEADERS that the response has."""
        self.body = bytearray()
        self.disconnect = asyncio.Event()
        self._request_sent = False
        self._sent_bytes = 0
        self._finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._finished.set_result(None)

    @property
    def streaming(self) -> bool:
        """Whether the response is server-sent events."""
        return self.content_type.startswith("text/event-stream")

    def run(
        self,
        app: ASGIApp,
        method: str,
        path: str,
        body: bytes = b"",
        headers: tuple[tuple[bytes, bytes], ...] = (),
        content_type: bytes = b"application/json",
        query: bytes = b"",
    ) -> Awaitable[None]:
        """Call the application; the result is done when it returns, and raises what it raises."""
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "root_path": "",
            "headers": [
                (b"host", b"worker"),
                (b"content-type", content_type),
                (b"content-length", str(len(body)).encode()),
                *headers,
            ],
            "client": ("127.0.0.1", 0),
            "server": ("worker", 80),
            "state": {},
        }

        async def receive() -> Message:
            if not self._request_sent:
                self._request_sent = True
                return {"type": "http.request", "body": body, "more_body": False}
            await self.disconnect.wait()
            return {"type": "http.disconnect"}

        # Not awaited here: each coroutine in between would cost time for every token.
        return app(scope, receive, self._send)

    def _send(self, message: Message) -> Awaitable[None]:
        # Called for every token: awaiting one finished future costs less than a coroutine.
        if message["type"] == "http.response.body":
            part = message.get("body", b"")
            if self._on_chunk is None:
                self.body += part
            elif part:
                self._on_chunk(part)
                self._sent_bytes += len(part)
                if self._sent_bytes >= _BYTES_A_TURN:
                    self._sent_bytes = 0
                    return asyncio.sleep(0)
        elif message["type"] == "http.response.start":
            self.status = message["status"]
            for name, value in message["headers"]:
                if name == b"content-type":
                    self.content_type = value.decode("latin-1")
                elif name in KEPT_HEADERS:
                    self.headers += ((name.decode(), value.decode("latin-1")),)
            if not self.streaming:
                self._on_chunk = None
        return self._finished


class Outcome(Enum):
    """How a run ended."""

    FINISHED = "finished"
    """The job has its terminal state."""
    LOST = "lost"
    """The job ended otherwise, or is another worker's."""
    RELEASE = "release"
    """The engine died or the worker gives the job back: it must be released, or was."""


class Run:
    """One job that a worker runs."""

    def __init__(self, worker: Jobs, job: HeldJob) -> None:
        self.job = job
        self.worker = worker
        self.trace = RunTrace.of(job)
        """None: the job is not traced."""
        self.started = time.monotonic()
        self.task: asyncio.Task[None] | None = None
        """The task that executes it."""
        self.ending = ""
        """How the run has ended: the state that it gave the job, or that others gave it, or why the
        job was given back; empty until then."""
        self.error_code = ""
        """Why the job failed, if it did."""
        self.released = False
        """The job is given back: what the engine still makes of it is not sent."""
        self._endpoint = ENDPOINTS.get(job.endpoint)
        self._exchange = Exchange(self._on_chunk)
        self._limit: asyncio.Timeout | None = None
        """Of the engine's call, while it is made."""
        self._failed = False  # the stream has ended with an error
        edit = None if job.body_bytes else answer_edit(job, self._endpoint)
        self.output: Output
        if job.number > 1:
            self.output = ContinuedOutput(self)
        else:
            edits = edit is not None or job.body_bytes
            self.output = (EditedOutput if edits else Output)(job, worker.publisher)
        self.output.edit = edit

    def abort(self, ending: str, *, release: bool = False) -> None:
        """Abort the engine's request and send nothing more. `release`: the job is given back."""
        self.ending = self.ending or ending
        self.released |= release
        self.output.discarded = True
        self.end_request()

    def end_request(self) -> None:
        """Have the engine end the request, or else cancel it after a while."""
        self._exchange.disconnect.set()
        if self._limit is not None and self._limit.when() is None:
            self._limit.reschedule(asyncio.get_running_loop().time() + _ABORT_S)

    async def execute(self) -> Outcome:
        """Run the job on the engine, in the calling task."""
        output, engine = self.output, self.worker.engine
        if engine.dead:  # the worker is about to end
            return Outcome.RELEASE
        output.has_begun = True
        JOURNAL.set(output)
        TENANT.set(self.job.tenant)
        if self.job.body_bytes:
            await self._read_body()
        failure = None
        if isinstance(output, ContinuedOutput):
            failure = await self._continue(output)
        elif not output.discarded:  # else it has ended since it was claimed
            failure = await self._call_engine()
        if self.released or (engine.dead and not output.discarded):
            return Outcome.RELEASE
        if output.discarded:
            return Outcome.LOST
        result = self._result(failure)
        self.error_code = result.error_code
        outcome = await self.worker.publisher.finish(output, result)
        self.worker.metrics.job_seconds.observe(time.monotonic() - self.started)
        if outcome != "ok":
            log.info("result not stored: the job is already %s", outcome)
            return Outcome.LOST
        self.ending = result.state
        return Outcome.FINISHED

    async def _read_body(self) -> None:
        """Read a large body of the request; without one the output is discarded."""
        job, queue = self.job, self.worker.queue
        body = await until_answered(
            lambda: queue.body(job.id, job.body_bytes),
            "a job's body was not read",
            is_wanted=lambda: not self.output.discarded,
        )
        if body is None:
            self.output.discarded = True  # the job is gone
            return
        self.job = job._replace(body=body, body_bytes=0)
        self.output.edit = answer_edit(self.job, self._endpoint)

    async def _continue(self, output: ContinuedOutput) -> Exception | None:
        """Run the job from the end of its log on, or anew if it can't be continued."""
        failure = None
        await output.read_log(self.worker.queue)
        while not output.discarded:
            if not output.refusal:
                failure = await self._call_engine()
                if failure is None and self._exchange.streaming and not self.worker.engine.dead:
                    output.check_whole()
            if not output.refusal or output.discarded:
                break
            log.error("job not continued: %s", output.refusal)
            self._exchange, self._failed = Exchange(self._on_chunk), False
            output.begin_anew()
            if output.subscribers:
                await self._exchange.disconnect.wait()  # a client may have seen it: it is lost
        return failure

    async def _call_engine(self) -> Exception | None:
        """Wait for the engine's application; returns what it raised, if it did."""
        endpoint = self._endpoint
        if endpoint is None:  # a newer gateway may have queued it
            self._fail(UnknownRoute(f"This worker does not serve {self.job.endpoint[:200]}."))
            return None
        with_file = endpoint.body is BodyKind.MULTIPART
        headers = (
            (b"x-request-id", self.job.id.encode()),
            *tracing.engine_headers(self.trace.ref if self.trace else None),
        )
        try:
            async with asyncio.timeout(None) as self._limit:
                await self._exchange.run(
                    self.worker.engine,
                    "POST",
                    endpoint.path,
                    engine_body(self.job, endpoint),
                    headers,
                    content_type_of(self.job.body) if with_file else b"application/json",
                )
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # this task itself is being cancelled
            return RuntimeError("the engine has cancelled the request")
        except Exception as error:
            return error
        finally:
            self._limit = None
        return None

    def _fail(self, error: FlotillaError) -> None:
        """End the job with this error instead of an answer."""
        exchange = self._exchange
        exchange.status, exchange.content_type = error.status, "application/json"
        exchange.headers, exchange.body[:] = (), error.to_openai()

    def _on_chunk(self, data: bytes) -> None:
        if is_error(data):
            # vLLM reports the death of its engine as an error inside the stream. The client does
            # not get that: another worker may still answer.
            if self.worker.engine.dead:
                self.abort("engine_died", release=True)
            self._failed = True
            if error_style(self.job.endpoint) is ErrorStyle.ANTHROPIC:
                data = as_anthropic_event(data)
        if not self.output.discarded:
            self.output.chunk(data)

    def _result(self, failure: Exception | None) -> JobResult:
        exchange, output = self._exchange, self.output
        if len(exchange.body) > MAX_RESULT_BYTES:
            self._fail(
                AnswerTooLarge(
                    f"The answer has {len(exchange.body)} bytes; at most {MAX_RESULT_BYTES} are "
                    "stored. Ask for less at once, or for embeddings as base64 or bytes."
                )
            )
        status, content_type, body = exchange.status, exchange.content_type, bytes(exchange.body)
        headers = exchange.headers
        if failure is not None or status == 0:
            log.error("the engine did not answer: %r", failure)
            status, content_type, headers, body = 500, "application/json", (), _NO_ANSWER
        code = "" if status < 400 else "rejected" if status < 500 else "engine_error"
        code = "engine_error" if self._failed else code
        if code and body and error_style(self.job.endpoint) is ErrorStyle.ANTHROPIC:
            body = as_anthropic(body, status)
        if output.edit and not code and body:
            body = output.edit.whole(body)
        return JobResult(
            error_code=code,
            status=status,
            content_type=content_type,
            body=body,
            prompt_tokens=output.prompt_tokens,
            completion_tokens=output.completion_tokens,
            headers=headers,
            cached_tokens=min(output.cached_tokens, output.prompt_tokens),
            first_output_s=(output.first_output_at or self.started) - self.started,
        )
