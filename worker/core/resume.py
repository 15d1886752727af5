"""The output of a job that an earlier worker has begun: its log is read before the engine is
called, and only what is behind the log's end is sent.

A job that can't be continued begins anew here if no client has seen any of it, else it fails: the
store decides that as it gets the `restarted` entry.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from shared.job.log import START, Entry, EventName, Position
from shared.platform.backoff import Backoff
from shared.platform.logs import RareWarning
from shared.platform.metrics.worker import WorkerMetrics
from shared.store.errors import TRANSIENT
from shared.store.queue import HeldJob, Queue, Step
from worker.core.output import EditedOutput, Output
from worker.core.sent_output import (
    Continuation,
    ContinuationDiffers,
    ContinuationReader,
    SentChunks,
    UnusableLog,
)
from worker.engines.interface import Past, PastRefused
from worker.engines.prompt_context import Context, difference

log = logging.getLogger("flotilla.job")
_warn = RareWarning(log)

ReplyT = TypeVar("ReplyT")

_RETRY_BASE_S, _RETRY_CAP_S = 0.05, 0.25
_PAGE = 1000
"""Entries of one call."""
_CODES = {"context": "context_changed", "log": "log_lost"}
"""Errors of jobs whose clients may have seen a part of the answer, by the kind of the refusal."""
_ENTRIES_AT_ONCE = 256
"""Entries added in one turn of the event loop; they take a few milliseconds."""


class ContinuedOutput(EditedOutput):
    """Drops what earlier attempts have sent, once `continue_from` was called.

    `on_refused` is called once if the job can't be continued; from
    then on nothing is sent, until `begin_anew`.
    """

    __slots__ = (
        "_continuation",
        "_metrics",
        "_on_refused",
        "_refusal_code",
        "_sent",
        "how",
        "refusal",
    )

    def __init__(
        self,
        job: HeldJob,
        notify: Callable[[Output], None],
        metrics: WorkerMetrics,
        on_refused: Callable[[], None],
    ) -> None:
        super().__init__(job, notify)
        self.how = ""
        """How the engine continues the job; empty as long as it does not."""
        self.refusal = ""
        """Why the job can't be continued, in words for the log; empty: it can."""
        self._refusal_code = ""
        self._metrics = metrics
        self._on_refused = on_refused
        self._continuation: Continuation | None = None
        self._sent: SentChunks | None = None

    def continue_from(self, continuation: Continuation) -> None:
        """Continue here; call it before the engine is called. Takes over the chunks."""
        self._continuation = continuation
        self._sent = SentChunks(continuation.chunks)
        continuation.chunks = []
        self.take_over(
            continuation.decoder, continuation.prompt_tokens, continuation.completion_tokens
        )

    def refuse(self, kind: str, reason: str) -> None:
        """The job can't be continued; nothing more of it is sent. `kind` is for the metrics."""
        if not self.refusal:
            self.refusal = reason
            self._refusal_code = _CODES.get(kind, "worker_lost")
            self._metrics.continuations_refused.labels(kind).inc()
            self._on_refused()

    def begin_anew(self) -> None:
        """Once the engine has ended the request that was refused: begin anew, without a past."""
        if self._continuation and not self.subscribers:
            self._metrics.tokens_decoded_again.inc(self._continuation.completion_tokens)
        self._continuation = self._sent = None
        self.refusal = ""
        self.restart(self._refusal_code)

    def check_whole(self) -> None:
        """The answer has ended: refuse it if it lacks what the client has."""
        if self._sent is not None and not self.is_silent:
            try:
                self._sent.check_all_made()
            except ContinuationDiffers as error:
                self.refuse("different", str(error))

    @property
    def is_silent(self) -> bool:
        """What the engine generates now is not sent."""
        return self.discarded or bool(self.refusal)

    # --- the engine's journal ---

    def past(self, call: int) -> Past | None:
        """See `Journal.past`."""
        past = self._continuation.pasts.get(call) if self._continuation else None
        return past if past and past.deltas else None

    def refuse_past(self, reason: str) -> None:
        """See `Journal.refuse_past`."""
        self.refuse("engine", reason)

    def continued(self, how: str, decoded_again: int) -> None:
        """See `Journal.continued`."""
        metrics = self._metrics
        if not self.how and self._continuation:
            self.how = how
            metrics.continued.labels(how).inc()
            metrics.tokens_taken_over.inc(self._continuation.completion_tokens)
        metrics.tokens_decoded_again.inc(decoded_again)

    def context(self, call: int, context: Context) -> None:
        """See `Journal.context`; one that is in the log is not journaled again."""
        known = self._continuation.contexts.get(call) if self._continuation else None
        if known is None or (known != context and self.past(call) is None):
            super().context(call, context)
        elif part := difference(known, context):
            self.refuse("context", f"another {part} than earlier attempts had")
            raise PastRefused(self.refusal)

    def prompt(self, call: int, n_tokens: int, logprobs: Sequence[Any] | None = None) -> None:
        """See `Journal.prompt`; a prompt that is in the log is not journaled again."""
        if self._continuation and call in self._continuation.pasts:
            self.reached_engine = True
        else:
            super().prompt(call, n_tokens, logprobs)

    def chunk(self, data: bytes) -> None:
        """Add bytes of a streamed answer, unless the client has them."""
        if self.is_silent:
            return
        if self._sent is None:
            super().chunk(data)
            return
        if self.edit is not None:
            data = self.edit.chunk(data)
        try:
            unsent = self._sent.unsent(data)
        except ContinuationDiffers as error:
            self.refuse("different", str(error))
        else:
            if unsent is not None:
                Output.chunk(self, unsent)

    def take(self, step: Step, claim: bytes) -> bool:
        """See `Output.take`; nothing of an answer that is refused."""
        return not self.refusal and super().take(step, claim)


async def read_past(queue: Queue, job: HeldJob) -> Sequence[Entry] | None:
    """The entries in front of the job's claim that count, in their order; None if the log does not
    reach as far: then the job can't be continued. Raises StoreError.

    Entries that follow the claim are others': the job has been taken away since.
    """
    claim, after = Position(job.generation, job.number), START
    entries: list[Entry] = []
    number = 0
    while job.number > 1:
        page = await queue.read(job.id, after, _PAGE)
        if after != START:
            if not page or page[0].position != after:
                return None
            page = page[1:]
        for entry in page:
            number += 1
            if entry.position == claim:
                return entries
            if entry.position.number != number:
                return None
            if entry.event == EventName.RESTARTED:
                entries = []
            entries.append(entry)
        if not page:
            return None
        after = page[-1].position
    return entries


async def continue_from_log(queue: Queue, output: ContinuedOutput, aborted: asyncio.Event) -> None:
    """Give `output` what the job's log has. If the log can't be used, the output refuses.

    Waits for Redis until `aborted` is set.
    """
    entries = await read_again(lambda: read_past(queue, output.job), aborted)
    if aborted.is_set():
        return
    try:
        if entries is None:
            raise UnusableLog("the log lacks entries")
        continuation = await _sum(entries)
    except UnusableLog as error:
        output.refuse("log", str(error))
        return
    if continuation.pasts or continuation.chunks:
        log.info(
            "continued behind its log: %d tokens, %d chunks",
            continuation.completion_tokens,
            len(continuation.chunks),
        )
        output.continue_from(continuation)


async def _sum(entries: Sequence[Entry]) -> Continuation:
    """The sum of a log; the tokens of other jobs go on meanwhile. Raises UnusableLog."""
    reader = ContinuationReader()
    for at in range(0, len(entries), _ENTRIES_AT_ONCE):
        reader.add(entries[at : at + _ENTRIES_AT_ONCE])
        await asyncio.sleep(0)
    return reader.continuation


async def read_again(
    call: Callable[[], Awaitable[ReplyT]], aborted: asyncio.Event
) -> ReplyT | None:
    """What `call` returns, as soon as Redis answers; None once `aborted` is set."""
    backoff = Backoff(_RETRY_BASE_S, _RETRY_CAP_S)
    while not aborted.is_set():
        try:
            return await call()
        except TRANSIENT as error:
            _warn("a job could not be read, trying again: %s", error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(aborted.wait(), backoff.next_delay_s())
    return None
