"""The run of one job, from its lease to its end: call the engine, pass its output on, report how
it ended.

Request path: `worker/core/loop.py` -> here -> the engine's ASGI application.
"""

from __future__ import annotations

import asyncio
import logging
import time
from enum import Enum
from typing import Any

from shared.api.endpoint import BodyKind, Endpoint, ErrorStyle
from shared.api.endpoints import ENDPOINTS
from shared.api.error_shapes import as_anthropic, as_anthropic_event, error_style
from shared.api.multipart import content_type_of
from shared.job.errors import AnswerTooLarge, FlotillaError, UnknownRoute
from shared.job.result import MAX_RESULT_BYTES, JobResult
from shared.job.states import JobEvent, JobState, after
from shared.platform import tracing
from shared.platform.metrics.worker import WorkerMetrics
from shared.store.queue import HeldJob, Queue
from worker.core.answer_edits import answer_edit, engine_body
from worker.core.asgi import Exchange, is_error
from worker.core.output import EditedOutput, Output
from worker.core.publish import Publisher
from worker.core.resume import ContinuedOutput, continue_from_log, read_again
from worker.core.run_trace import RunTrace
from worker.engines.interface import JOURNAL, TENANT, Engine

log = logging.getLogger("flotilla.job")

# How long the engine may take to end an aborted request before its task is cancelled.
_ABORT_S = 10.0


class Outcome(Enum):
    """How a run ended."""

    FINISHED = "finished"
    """The job has its terminal state."""
    LOST = "lost"
    """The job ended otherwise, or its lease is another worker's."""
    RELEASE = "release"
    """The engine died or the worker has to end: the job is still leased and must be released."""


class JobRun:
    """One job that this worker runs. `started`: when its lease arrived, on the monotonic clock.

    `queue` has the log of a job that an earlier worker has begun.
    """

    def __init__(
        self,
        job: HeldJob,
        engine: Engine,
        publisher: Publisher,
        metrics: WorkerMetrics,
        queue: Queue,
    ) -> None:
        self.job = job
        self._queue = queue
        self._endpoint = ENDPOINTS.get(job.endpoint)
        self._edit = edit = None if job.body_bytes else answer_edit(job, self._endpoint)
        self._continued: ContinuedOutput | None = None
        self.trace = RunTrace.of(job)
        """None: the job is not traced."""
        self.output: Output
        if job.number > 1:
            self.output = self._continued = ContinuedOutput(
                job, publisher.notify, metrics, self._end_request
            )
        elif edit or job.body_bytes:
            self.output = EditedOutput(job, publisher.notify)
        else:
            self.output = Output(job, publisher.notify)
        self.output.edit = edit
        self._engine = engine
        self._publisher = publisher
        self._metrics = metrics
        self.final_state = ""
        """The terminal state that this run gives the job; empty until it does."""
        self.error_code = ""
        """Why the job failed, if it did."""
        self.started = time.monotonic()
        self.released = False
        """The job was released; the engine ends the request, and nothing else of it is left."""
        self.task: asyncio.Task[None] | None = None
        """The task that executes it; set by the worker's loop."""
        self._exchange = Exchange(self._on_chunk)
        self._failed = False  # the stream has ended with an error
        self._release = False
        self._task: asyncio.Task[Any] | None = None
        self._cancel_timer: asyncio.TimerHandle | None = None
        self._cancelled_by_timer = False

    def abort(self, *, release: bool = False) -> None:
        """Abort the engine's request and send nothing more.

        `release`: the lease is kept, so that the job can be released to other workers.
        """
        self._release |= release
        self.output.discarded = True
        self._end_request()

    def _end_request(self) -> None:
        self._exchange.disconnect.set()
        if self._cancel_timer is None:
            self._cancel_timer = asyncio.get_running_loop().call_later(_ABORT_S, self._cancel)

    async def execute(self) -> Outcome:
        """Run the job on the engine, in the calling task."""
        if self._engine.dead:  # the worker is about to end
            return Outcome.RELEASE
        self.output.has_begun = True
        JOURNAL.set(self.output)
        TENANT.set(self.job.tenant)
        if self.job.body_bytes:
            await self._read_body()
        if self._continued is None:
            # A job that has ended since it was leased (a deadline) never reaches the engine.
            failure = None if self.output.discarded else await self._call_engine()
        else:
            failure = await self._continue(self._continued)
        if self._release or (self._engine.dead and not self.output.discarded):
            return Outcome.RELEASE
        if self.output.discarded:
            return Outcome.LOST
        result = self._result(failure)
        self.final_state = after(JobState.IN_PROGRESS, result.event)
        self.error_code = result.error_code
        outcome = await self._publisher.finish(self.output, result)
        self._metrics.job_seconds.observe(time.monotonic() - self.started)
        if outcome != "ok":
            log.info("result not stored: the job is already %s", outcome)
            return Outcome.LOST
        return Outcome.FINISHED

    async def _read_body(self) -> None:
        """Read a large body of the request; without one the output is discarded."""
        job, disconnect = self.job, self._exchange.disconnect
        body = await read_again(lambda: self._queue.body(job.id, job.body_bytes), disconnect)
        if body is None:
            self.output.discarded = True  # the job is gone
            return
        self.job = job._replace(body=body, body_bytes=0)
        self._edit = self.output.edit = answer_edit(self.job, self._endpoint)

    async def _continue(self, output: ContinuedOutput) -> Exception | None:
        """Run the job from the end of its log on, or anew if it can't be continued."""
        failure = None
        await continue_from_log(self._queue, output, self._exchange.disconnect)
        while not output.discarded:
            if not output.refusal:
                failure = await self._call_engine()
                if failure is None and self._exchange.streaming and not self._engine.dead:
                    output.check_whole()
            if not output.refusal or output.discarded:
                break
            log.error("job not continued: %s", output.refusal)
            self._begin_anew(output)
            if output.subscribers:
                await self._exchange.disconnect.wait()  # a client may have seen it: it is lost
        return failure

    def _begin_anew(self, output: ContinuedOutput) -> None:
        if self._cancel_timer is not None:
            self._cancel_timer.cancel()
        self._cancel_timer, self._cancelled_by_timer, self._failed = None, False, False
        self._exchange = Exchange(self._on_chunk)
        output.begin_anew()

    async def _call_engine(self) -> Exception | None:
        """Wait for the engine's application; returns what it raised, if it did."""
        self._task = asyncio.current_task()
        if self._endpoint is None:  # a newer gateway may have queued it
            self._fail(UnknownRoute(f"This worker does not serve {self.job.endpoint[:200]}."))
            return None
        headers = (
            (b"x-request-id", self.job.id.encode()),
            *tracing.engine_headers(self.trace.ref if self.trace else None),
        )
        try:
            await self._exchange.run(
                self._engine,
                "POST",
                self._endpoint.path,
                engine_body(self.job, self._endpoint),
                headers,
                self._content_type(self._endpoint),
            )
        except asyncio.CancelledError:
            if self._task is None or self._task.cancelling() > self._cancelled_by_timer:
                raise  # this task itself is being cancelled
            if self._cancelled_by_timer:
                self._task.uncancel()
            return RuntimeError("the engine has cancelled the request")
        except Exception as error:
            return error
        finally:
            if self._cancel_timer is not None:
                self._cancel_timer.cancel()
            self._task = None
        return None

    def _fail(self, error: FlotillaError) -> None:
        """End the job with this error instead of an answer."""
        exchange = self._exchange
        exchange.status, exchange.content_type, exchange.headers = (
            error.status,
            "application/json",
            (),
        )
        exchange.body[:] = error.to_openai()

    def _content_type(self, endpoint: Endpoint) -> bytes:
        with_file = endpoint.body is BodyKind.MULTIPART
        return content_type_of(self.job.body) if with_file else b"application/json"

    def _cancel(self) -> None:
        if self._task is not None:
            self._cancelled_by_timer = True
            self._task.cancel()

    def _on_chunk(self, data: bytes) -> None:
        if is_error(data):
            # vLLM reports the death of its engine as an error inside the stream. The client does
            # not get that: another worker may still answer.
            if self._engine.dead:
                self.abort(release=True)
            self._failed = True
            if error_style(self.job.endpoint) is ErrorStyle.ANTHROPIC:
                data = as_anthropic_event(data)
        if self.output.discarded:
            return
        self.output.chunk(data)

    def _result(self, failure: Exception | None) -> JobResult:
        exchange = self._exchange
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
            status, content_type, headers = 500, "application/json", ()
            body = (
                b'{"error":{"message":"The engine could not answer.",'
                b'"type":"InternalServerError","param":null,"code":500}}'
            )
        code = "" if status < 400 else "rejected" if status < 500 else "engine_error"
        code = "engine_error" if self._failed else code
        if code and body and error_style(self.job.endpoint) is ErrorStyle.ANTHROPIC:
            body = as_anthropic(body, status)
        if self._edit and not code and body:
            body = self._edit.whole(body)
        return JobResult(
            event=JobEvent.FAIL if code else JobEvent.COMPLETE,
            error_code=code,
            status=status,
            content_type=content_type,
            body=body,
            prompt_tokens=self.output.prompt_tokens,
            completion_tokens=self.output.completion_tokens,
            headers=headers,
            cached_tokens=min(self.output.cached_tokens, self.output.prompt_tokens),
            first_output_s=(self.output.first_output_at or self.started) - self.started,
        )
