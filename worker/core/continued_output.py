"""The output of a job that an earlier worker has begun: only what is behind the log's end is sent.

Jobs in their first attempt use `OutputBuffer` itself and pay nothing for this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shared.job.chunk_template import DeltaEncoder
from shared.job.job import LeasedJob
from shared.job.states import JobState
from shared.platform.metrics import WorkerMetrics
from worker.core.answer_edit import AnswerEdit
from worker.core.output_buffer import OutputBuffer
from worker.core.sent_output import Continuation, ContinuationDiffers, SentChunks
from worker.engines.interface import Past, PastRefused
from worker.engines.prompt_context import Context, difference


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
