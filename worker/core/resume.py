"""How a run continues a job of an earlier worker: its log is read before the engine is called, and
only what is behind the log's end is sent.

Jobs in their first attempt use `OutputBuffer` itself, at no cost. A job that can't be
continued begins anew if no client has seen any of it, else it fails: the script `restart` decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from shared.job.frames import DeltaEncoder
from shared.job.job import LeasedJob
from shared.job.job_log import Entry
from shared.job.states import JobState
from shared.platform.backoff import Backoff
from shared.platform.logs import RareWarning
from shared.platform.metrics.worker import WorkerMetrics
from shared.store.interface import TRANSIENT, Store, StoreError
from worker.core.answer_edits import AnswerEdit
from worker.core.output_buffer import OutputBuffer
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

_RETRY_BASE_S = 0.05
_RETRY_CAP_S = 0.25
# So many calls are made to give up a job; then its lease runs out, and another worker gives it up.
_TRIES_TO_GIVE_UP = 10
_ENTRIES_AT_ONCE = 256
"""Entries added in one turn of the event loop; they take a few milliseconds."""
_OUTCOME = "not_continued"
"""The attempt's outcome in the job's history."""


class ContinuedOutputBuffer(OutputBuffer):
    """Drops what earlier attempts have sent, once `continue_from` was called.

    `edit`: see `EditedOutputBuffer`. `on_refused` is called once if the job can't be continued;
    from then on nothing is sent.
    """

    __slots__ = (
        "_continuation",
        "_edit",
        "_metrics",
        "_on_refused",
        "_sent",
        "how",
        "refusal",
        "refusal_code",
    )

    def __init__(
        self,
        job: LeasedJob,
        notify: Callable[[OutputBuffer], None],
        edit: AnswerEdit | None,
        metrics: WorkerMetrics,
        on_refused: Callable[[], None],
    ) -> None:
        super().__init__(job, notify)
        self.how = ""
        """How the engine continues the job; empty as long as it does not."""
        self.refusal = ""
        """Why the job can't be continued, in words for the log; empty: it can."""
        self.refusal_code = ""
        """The error of the job then, if a client may have seen a part of its answer."""
        self._metrics = metrics
        self._edit = edit
        self._on_refused = on_refused
        self._continuation: Continuation | None = None
        self._sent: SentChunks | None = None

    def continue_from(self, continuation: Continuation) -> None:
        """Continue here; call it before the engine is called. Takes over the chunks."""
        self._continuation = continuation
        self._sent = SentChunks(continuation.chunks)
        continuation.chunks = []
        self._seq = continuation.last_seq
        self._encoder = DeltaEncoder(continuation.decoder)
        self.prompt_tokens = continuation.prompt_tokens
        self.completion_tokens = continuation.completion_tokens

    @property
    def new_tokens(self) -> int:
        """See `OutputBuffer.new_tokens`."""
        taken_over = self._continuation.completion_tokens if self._continuation else 0
        return self.completion_tokens - taken_over

    def refuse(self, kind: str, reason: str) -> None:
        """The job can't be continued; nothing more of it is sent. `kind` is for the metrics."""
        if not self.refusal:
            self.refusal = reason
            self.refusal_code = "context_changed" if kind == "context" else "worker_lost"
            self.discarded = True
            self._metrics.continuations_refused.labels(kind).inc()
            self._on_refused()

    def check_whole(self) -> None:
        """The answer has ended: refuse it if it lacks what the client has."""
        if self._sent is not None and not self.discarded:
            try:
                self._sent.check_all_made()
            except ContinuationDiffers as error:
                self.refuse("different", str(error))

    def count_restart(self, state: str) -> None:
        """The job has been given up and is in `state` now; a queued one begins anew."""
        if state == JobState.QUEUED and self._continuation:
            self._metrics.tokens_decoded_again.inc(self._continuation.completion_tokens)

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
        if self.discarded:
            return
        if self._edit is not None:
            data = self._edit.chunk(data)
        if self._sent is None:
            super().chunk(data)
            return
        try:
            unsent = self._sent.unsent(data)
        except ContinuationDiffers as error:
            self.refuse("different", str(error))
        else:
            if unsent is not None:
                super().chunk(unsent)


async def continue_from_log(
    queue: Store, buffer: ContinuedOutputBuffer, aborted: asyncio.Event
) -> None:
    """Give `buffer` what the job's log has; an empty log leaves it as it is.

    If the log can't be used, the buffer refuses; if the job was lost, the buffer is discarded.
    Waits for Redis until `aborted` is set.
    """
    job = buffer.job
    part = await _answer(lambda: queue.read_log(job.id, 0), aborted)
    if part is None or buffer.discarded:
        return
    entries = part.entries
    if part.generation != job.generation or (entries and entries[-1].end):
        buffer.discarded = True  # the next renewal would find that out
        return
    if not entries:
        return
    try:
        continuation = await _sum(entries)
    except UnusableLog as error:
        buffer.refuse("log", str(error))
        return
    log.info(
        "continued behind entry %d of its log: %d tokens, %d chunks",
        continuation.last_seq,
        continuation.completion_tokens,
        len(continuation.chunks),
    )
    buffer.continue_from(continuation)


async def _sum(entries: Sequence[Entry]) -> Continuation:
    """The sum of a log; the tokens of other jobs go on meanwhile. Raises UnusableLog."""
    reader = ContinuationReader()
    for at in range(0, len(entries), _ENTRIES_AT_ONCE):
        reader.add(entries[at : at + _ENTRIES_AT_ONCE])
        await asyncio.sleep(0)
    return reader.continuation


async def give_up(queue: Store, buffer: ContinuedOutputBuffer) -> None:
    """Give up the job of a buffer that has refused: it begins anew, or it fails."""
    try:
        state = await _answer(
            lambda: queue.restart(buffer.job, _OUTCOME, buffer.refusal_code),
            asyncio.Event(),
            _TRIES_TO_GIVE_UP,
        )
    except StoreError as error:
        log.error("job not continued (%s), and not given up: %s", buffer.refusal, error)
        return
    if state:
        buffer.count_restart(state)
        log.error("job not continued (%s), it is %s now", buffer.refusal, state)


async def _answer(
    call: Callable[[], Awaitable[ReplyT]], aborted: asyncio.Event, tries: int = 0
) -> ReplyT | None:
    """What `call` returns, as soon as Redis answers; None once `aborted` is set.

    `tries`: the error of the last one is raised; 0: no limit.
    """
    backoff = Backoff(_RETRY_BASE_S, _RETRY_CAP_S)
    while not aborted.is_set():
        try:
            return await call()
        except TRANSIENT as error:
            tries -= 1
            if tries == 0:
                raise
            _warn("the job's log is not available, trying again: %s", error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(aborted.wait(), backoff.next_delay_s())
    return None
