"""One job, from its lease to its end: call the engine, pass on what comes, say how it ended."""

from __future__ import annotations

import asyncio
import logging
import time
from enum import Enum
from typing import Any

from shared.platform.metrics import WorkerMetrics
from shared.protocol.job import LeasedJob
from shared.protocol.result import JobResult
from shared.protocol.states import JobEvent, JobState, after
from worker.engines.protocol import JOURNAL, Engine
from worker.publish.output_buffer import OutputBuffer
from worker.publish.publisher import Publisher
from worker.publish.service_tier import TieredOutbox, named_in, tier_of
from worker.run.asgi import Exchange

log = logging.getLogger("flotilla.runner")

_ERROR_CHUNK = b'data: {"error"'
# How long the engine gets to end a request that was dropped before its task is cancelled.
_ABORT_S = 10.0


class Outcome(Enum):
    """How a run ended."""

    FINISHED = "finished"
    """The job has its terminal state."""
    LOST = "lost"
    """The job is not this worker's any more."""
    HAND_BACK = "hand_back"
    """The engine died, or the worker must end: the job is still leased and must be released."""


class Run:
    """A job in this worker's hands."""

    def __init__(
        self, job: LeasedJob, engine: Engine, publisher: Publisher, metrics: WorkerMetrics
    ) -> None:
        self.job = job
        self._tier = tier_of(job.body)
        self.buffer = (
            TieredOutbox(job, publisher, self._tier) if self._tier else OutputBuffer(job, publisher)
        )
        self._engine = engine
        self._publisher = publisher
        self._metrics = metrics
        self.ended_as = ""
        """The job's terminal state, once it has one from us."""
        self.error_code = ""
        """Why it failed, if so."""
        self.started = time.monotonic()
        self._exchange = Exchange(self._on_chunk)
        self._spoke = False
        self._failed = False
        self._giving_back = False
        self._task: asyncio.Task[Any] | None = None
        self._abort: asyncio.TimerHandle | None = None
        self._aborted = False

    def drop(self) -> None:
        """The job is somebody else's, or nobody wants it: abort, and send nothing more."""
        self.buffer.dropped = True
        self._exchange.disconnect.set()
        if self._abort is None:
            self._abort = asyncio.get_running_loop().call_later(_ABORT_S, self._cut_off)

    def give_back(self) -> None:
        """Abort, and keep the lease so that the job can be released."""
        self._giving_back = True
        self.drop()

    async def carry_out(self) -> Outcome:
        """Run the job on the engine, in the calling task."""
        JOURNAL.set(self.buffer)
        self._task = asyncio.current_task()
        failure = await self._call_engine()
        if self._giving_back or (self._engine.dead and not self.buffer.dropped):
            return Outcome.HAND_BACK
        if self.buffer.dropped:
            return Outcome.LOST
        answer = self._answer(failure)
        self.ended_as = after(JobState.IN_PROGRESS, answer.event)
        self.error_code = answer.error_code
        verdict = await self._publisher.finish(self.buffer, answer)
        self._metrics.job_seconds.observe(time.monotonic() - self.started)
        if verdict != "ok":
            log.info("%s is %s already", self.job.id, verdict)
            return Outcome.LOST
        return Outcome.FINISHED

    async def _call_engine(self) -> Exception | None:
        """Returns when the engine's application has; what it raised, if it did."""
        request_id = (b"x-request-id", self.job.id.encode())
        try:
            await self._exchange.run(
                self._engine, "POST", self.job.endpoint, self.job.body, (request_id,)
            )
        except asyncio.CancelledError:
            if self._task is None or self._task.cancelling() > self._aborted:
                raise  # somebody ends this task
            if self._aborted:
                self._task.uncancel()
            return RuntimeError("the engine has cancelled the request")
        except Exception as error:
            return error
        finally:
            if self._abort is not None:
                self._abort.cancel()
            self._task = None
        return None

    def _cut_off(self) -> None:
        if self._task is not None:
            self._aborted = True
            self._task.cancel()

    def _on_chunk(self, data: bytes) -> None:
        if data.startswith(_ERROR_CHUNK):
            # vLLM tells the death of its engine as an error inside the stream; it is not the
            # client's: another worker may still give the answer.
            if self._engine.dead:
                self.give_back()
            self._failed = True
        if self.buffer.dropped:
            return
        if not self._spoke:
            self._spoke = True
            self._metrics.first_token.observe(time.monotonic() - self.started)
        self.buffer.chunk(data)

    def _answer(self, failure: Exception | None) -> JobResult:
        exchange = self._exchange
        status, content_type, body = exchange.status, exchange.content_type, bytes(exchange.body)
        if failure is not None or status == 0:
            log.error("%s: the engine's application failed: %r", self.job.id, failure)
            status, content_type = 500, "application/json"
            body = (
                b'{"error":{"message":"The engine could not answer.",'
                b'"type":"InternalServerError","param":null,"code":500}}'
            )
        code = "" if status < 400 else "rejected" if status < 500 else "engine_error"
        if self._failed:
            code = "engine_error"
        if self._tier and not code and body:
            body = named_in(body, self._tier)
        return JobResult(
            event=JobEvent.FAIL if code else JobEvent.COMPLETE,
            error_code=code,
            status=status,
            content_type=content_type,
            body=body,
            prompt_tokens=self.buffer.prompt_tokens,
            completion_tokens=self.buffer.completion_tokens,
        )
