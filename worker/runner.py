"""One job, from its lease to its end: call the engine, pass on what comes, say how it ended."""

from __future__ import annotations

import asyncio
import logging
import time
from enum import Enum

from shared.job import LeasedJob
from shared.metrics import WorkerMetrics
from shared.queue import Answer
from shared.states import JobEvent, JobState, after
from worker.asgi import Exchange
from worker.engines.protocol import JOURNAL, Engine
from worker.publisher import Outbox, Publisher

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
        self.outbox = Outbox(job, publisher)
        self._engine = engine
        self._publisher = publisher
        self._metrics = metrics
        self.ended_as = ""
        """The job's terminal state, once it has one from us."""
        self._exchange = Exchange(self._on_chunk)
        self._started = time.monotonic()
        self._spoke = False
        self._failed = False
        self._giving_back = False

    def drop(self) -> None:
        """The job is somebody else's, or nobody wants it: abort, and send nothing more."""
        self.outbox.dropped = True
        self._exchange.disconnect.set()

    def give_back(self) -> None:
        """Abort, and keep the lease so that the job can be released."""
        self._giving_back = True
        self.drop()

    async def carry_out(self) -> Outcome:
        """Run the job on the engine."""
        JOURNAL.set(self.outbox)
        call = asyncio.ensure_future(
            self._exchange.run(
                self._engine,
                "POST",
                self.job.endpoint,
                self.job.body,
                ((b"x-request-id", self.job.id.encode()),),
            )
        )
        dropped = asyncio.ensure_future(self._exchange.disconnect.wait())
        try:
            await asyncio.wait({call, dropped}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                await asyncio.wait({call}, timeout=_ABORT_S)
        finally:
            dropped.cancel()
            call.cancel()
        if self._giving_back or (self._engine.dead and not self.outbox.dropped):
            _retrieve(call)
            return Outcome.HAND_BACK
        if self.outbox.dropped:
            _retrieve(call)
            return Outcome.LOST
        answer = self._answer(call)
        self.ended_as = after(JobState.IN_PROGRESS, answer.event)
        verdict = await self._publisher.finish(self.outbox, answer)
        self._metrics.job_seconds.observe(time.monotonic() - self._started)
        if verdict != "ok":
            log.info("%s is %s already", self.job.id, verdict)
            return Outcome.LOST
        return Outcome.FINISHED

    def _on_chunk(self, data: bytes) -> None:
        if data.startswith(_ERROR_CHUNK):
            # vLLM tells the death of its engine as an error inside the stream; it is not the
            # client's: another worker may still give the answer.
            if self._engine.dead:
                self.give_back()
            self._failed = True
        if self.outbox.dropped:
            return
        if not self._spoke:
            self._spoke = True
            self._metrics.first_token.observe(time.monotonic() - self._started)
        self.outbox.chunk(data)

    def _answer(self, call: asyncio.Future[None]) -> Answer:
        exchange, transcript = self._exchange, self.outbox.transcript
        status, content_type, body = exchange.status, exchange.content_type, bytes(exchange.body)
        error = None if call.cancelled() else call.exception()
        if error is not None or status == 0:
            log.error("%s: the engine's application failed: %r", self.job.id, error)
            status, content_type = 500, "application/json"
            body = (
                b'{"error":{"message":"The engine could not answer.",'
                b'"type":"InternalServerError","param":null,"code":500}}'
            )
        code = "" if status < 400 else "rejected" if status < 500 else "engine_error"
        if self._failed:
            code = "engine_error"
        return Answer(
            event=JobEvent.FAIL if code else JobEvent.COMPLETE,
            error_code=code,
            status=status,
            content_type=content_type,
            body=body,
            prompt_tokens=transcript.prompt_tokens,
            completion_tokens=transcript.completion_tokens,
        )


def _retrieve(call: asyncio.Future[None]) -> None:
    """Look at the exception of an aborted call so that asyncio does not complain about it."""
    if call.done() and not call.cancelled():
        call.exception()
