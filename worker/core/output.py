"""The output of one job, until it is sent: what the engine has generated becomes entries of the
job's log.

Token path: `worker/engines/vllm/journal.py` and `chunks.py` -> here -> `worker/core/publish.py`.
"""

from __future__ import annotations

import time
from asyncio import Future
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from shared.job.log import (
    DeltaDecoder,
    DeltaEncoder,
    EventName,
    Item,
    Journal,
    Record,
    context_record,
    frame_head,
    make_journal,
    pack_entry,
    pack_frame,
    token_of,
)
from shared.job.result import JobResult
from shared.store.queue import HeldJob, Step, pack_end
from worker.core.edits import AnswerEdit
from worker.engines.interface import Context, Logprobs, Past

if TYPE_CHECKING:
    from worker.core.publish import Publisher

_RESTARTED = pack_entry(None, None, (EventName.RESTARTED,))


class Charged(NamedTuple):
    """What a tenant was charged for a job."""

    cost: float
    """For what has been made."""
    ahead: float
    """For what was expected at the last charge, over the weight. It halves in Redis since."""
    at: float
    """When that was, on the monotonic clock."""


class Output:
    """The output of one job. It is the engine's `Journal` for the job.

    It notifies the publisher once when there is output to take, and again after each `take`.
    """

    __slots__ = (
        "__weakref__",
        "_chunks",
        "_encoder",
        "_head",
        "_notified",
        "_notify",
        "_records",
        "_restart",
        "cached_tokens",
        "charged",
        "completion_tokens",
        "discarded",
        "edit",
        "entry_prefix",
        "first_output_at",
        "has_begun",
        "has_ended",
        "id",
        "job",
        "movable",
        "number",
        "outcome",
        "prompt_tokens",
        "reached_engine",
        "result",
        "shard",
        "started",
        "subscribers",
        "taken_over",
    )

    def __init__(self, job: HeldJob, publisher: Publisher) -> None:
        self.job = job
        self.id = job.id
        self.shard = job.shard
        self.entry_prefix = f"{job.generation}-"
        """Of the ids of its entries; their numbers follow."""
        self.number = job.number
        """Of the last entry that was made; at first that of the claim."""
        self.subscribers: Sequence[str] = ()
        """The gateways that get each step."""
        self.set_watchers(job.watchers, watched=job.watched)
        self.started = time.monotonic()
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.taken_over = 0
        """Of these: those that earlier attempts have generated."""
        self.cached_tokens = 0
        """Of the prompts: those that this attempt has found in the engine's cache."""
        self.charged = Charged(0.0, job.share.charged, self.started)
        """What its tenant was charged for it so far."""
        self.has_begun = False
        """The engine was alive when the job began, so the job may be what has ended it."""
        self.edit: AnswerEdit | None = None
        """Changes each chunk of a stream; see `EditedOutput`."""
        self.reached_engine = False
        """The engine counts the job's sequences in its load."""
        self.movable = True
        """Another worker can continue the job, whatever its output is."""
        self.discarded = False
        """The job was aborted, or is this worker's no more: nothing more of it is sent."""
        self.first_output_at: float | None = None
        """When this attempt's first entry was made, on the monotonic clock; None: none was."""
        self.result: JobResult | None = None
        """How the job ends, once it does."""
        self.has_ended = False
        """Its end is made; nothing follows."""
        self.outcome: Future[str] | None = None
        self._head = frame_head(job.id, job.generation)  # of its frames
        self._chunks: list[bytes] = []
        self._records: list[Record] = []
        self._restart: str | None = None
        self._notified = False
        self._encoder = DeltaEncoder()
        self._notify = publisher.notify

    # --- what is sent of it ---

    @property
    def is_starting(self) -> bool:
        """The engine has generated nothing for this attempt yet."""
        has_new = self.completion_tokens > self.taken_over
        return not (has_new or self.discarded or self.result)

    @property
    def new_tokens(self) -> int:
        """Tokens that this attempt has generated."""
        return self.completion_tokens - self.taken_over

    def set_watchers(self, watchers: str, *, watched: bool) -> None:
        """`watchers`: the gateways that wait for the end; `watched`: for each step, too."""
        self.subscribers = watchers.split() if self.job.stream or watched else ()

    def take(self, step: Step, claim: bytes) -> bool:
        """Put what is new into a step, as an entry; whether anything was. `claim`: as in `put`."""
        self._notified = False
        if self.discarded or self.has_ended:
            return False
        before = self.number
        if self._restart is not None:
            self.number += 1
            self.put(step, step.restarts, self.number, self._restart, claim)
            self._restart = None
        chunks, records, result = self._chunks, self._records, self.result
        if chunks or records or result:
            items: list[Item]
            journal: Journal
            if len(chunks) == len(records) == 1 and (
                (text := self._encoder.text(chunks[0])) is not None
            ):
                items, token = [text], token_of(records[0], text)
                journal = (records[0],) if token is None else token
            else:
                items = self._encoder.encode(chunks)
                journal = make_journal(records, items)
            self._chunks, self._records = [], []
            self.number = number = self.number + 1
            if self.first_output_at is None:
                self.first_output_at = time.monotonic()
            if result is None:
                self.put(step, step.entries, number, pack_entry(journal, items), claim)
            else:  # the script publishes it
                step.ends.append(
                    pack_end(self.job, number, journal, items, self.completion_tokens, result)
                )
                self.has_ended = True
        return self.number > before

    def put(self, step: Step, flat: list[Any], number: int, data: Any, claim: bytes) -> None:
        """Put one of the step's `entries` or `restarts` into it, and its frame.

        `claim`: the entry of this worker's claim, whose frame goes before its first one.
        """
        flat += (self.id, self.entry_prefix + str(number), data)
        if not self.subscribers:
            return
        frame = pack_frame(self._head, number, data if flat is step.entries else _RESTARTED)
        if number == self.job.number + 1:
            frame = pack_frame(self._head, self.job.number, claim) + frame
        for gateway in self.subscribers:
            step.messages.setdefault(gateway, []).append(frame)

    def take_over(self, decoder: DeltaDecoder, prompt_tokens: int, completion_tokens: int) -> None:
        """Go on behind what earlier attempts have generated; `decoder` has decoded its chunks."""
        self._encoder = DeltaEncoder(decoder)
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = self.taken_over = completion_tokens

    def restart(self, code: str) -> None:
        """Begin anew: what was generated does not count, whether it was sent or not. A job whose
        client may have seen that fails with this error code instead."""
        self._encoder, self._chunks, self._records = DeltaEncoder(), [], []
        self.prompt_tokens = self.completion_tokens = self.taken_over = 0
        self.reached_engine = False
        self._restart = code
        self._notify(self)

    def resolve(self, outcome: str) -> None:
        """The end of the job was sent, or is not sent."""
        if self.outcome is not None and not self.outcome.done():
            self.outcome.set_result(outcome)

    # --- the engine's journal ---

    def past(self, call: int) -> Past | None:
        """See `Journal.past`."""
        return None

    def refuse_past(self, reason: str) -> None:
        """See `Journal.refuse_past`."""
        raise AssertionError(f"there is no past to refuse: {reason}")

    def continued(self, how: str, decoded_again: int) -> None:
        """See `Journal.continued`."""
        raise AssertionError(f"there is no past to continue by {how}")

    def keep_here(self) -> None:
        """See `Journal.keep_here`."""
        self.movable = False

    def context(self, call: int, context: Context) -> None:
        """See `Journal.context`."""
        self._records.append(context_record(call, context))

    def prompt(self, call: int, n_tokens: int, logprobs: Sequence[Any] | None = None) -> None:
        """See `Journal.prompt`."""
        # Sent with the first delta: as long as its log is empty, another worker may start the job.
        self.reached_engine = True
        self.prompt_tokens += n_tokens
        self._records.append((call, n_tokens) if logprobs is None else (call, n_tokens, logprobs))

    def cached(self, n_tokens: int) -> None:
        """See `Journal.cached`."""
        self.cached_tokens += n_tokens

    def delta(
        self,
        call: int,
        index: int,
        token_ids: Sequence[int],
        text: str,
        logprobs: Logprobs | None = None,
    ) -> None:
        """See `Journal.delta`."""
        self.completion_tokens += len(token_ids)
        if logprobs is None:
            self._records.append((call, index, token_ids, text))
        else:
            self._records.append((call, index, token_ids, text, logprobs))
        if not self._notified:
            self._notified = True
            self._notify(self)

    def chunk(self, data: bytes) -> None:
        """Add bytes of a streamed answer."""
        self._chunks.append(data)
        if not self._notified:
            self._notified = True
            self._notify(self)


class EditedOutput(Output):
    """Edits every chunk of a stream. Others have no edit, and do not look for one."""

    __slots__ = ()

    def chunk(self, data: bytes) -> None:
        """Add server-sent events."""
        super().chunk(data if self.edit is None else self.edit.chunk(data))
