"""An output buffer: what one job has produced, until it is in the job's log.

Token path: `worker/engines/vllm/journal.py` and `stream_chunks.py` -> here ->
`worker/core/publisher.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from shared.job.frames import DeltaEncoder, FrameKind, Item, entries_of
from shared.job.job import LeasedJob
from shared.job.job_log import Journal, Record, context_record, make_journal, pack_segment, token_of
from shared.job.packing import pack
from shared.job.result import JobResult
from shared.job.step_log import FinalEntry, JobStream, LogFlush
from worker.core.asgi import is_error
from worker.engines.interface import Logprobs, Past
from worker.engines.prompt_context import Context


class OutputBuffer(JobStream):
    """The output of one job. It is the engine's `Journal` for the job.

    `notify(buffer)` is called once when there is output to take, and again after each `take`.
    """

    __slots__ = (
        "_chunks",
        "_encoder",
        "_id",
        "_kind",
        "_last_kind",
        "_notified",
        "_notify",
        "_records",
        "_seq",
        "cached_tokens",
        "completion_tokens",
        "discarded",
        "first_output_at",
        "log_started",
        "movable",
        "prompt_tokens",
        "reached_engine",
        "unflushed",
    )

    def __init__(self, job: LeasedJob, notify: Callable[[OutputBuffer], None]) -> None:
        super().__init__(job)
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens = 0
        """Of the prompts: those that this attempt has found in the engine's cache."""
        self.reached_engine = False
        """The engine counts the job's sequences in its load."""
        self.discarded = False
        """The job was aborted or its lease is lost: nothing more of it is sent."""
        self.unflushed: list[bytes] = []
        """The latest frames, those whose entries are not in the job's log yet."""
        self.log_started = False
        """This attempt's first entry is in the job's log, or on its way there."""
        self.first_output_at: float | None = None
        """When this attempt's first entry was sent, on the monotonic clock; None: none was."""
        self.movable = True
        """Another worker can continue the job, whatever its output is."""
        self._id = job.id
        self._kind = int(FrameKind.CHUNK if job.stream else FrameKind.DELTAS)
        self._last_kind = int(FrameKind.LAST_CHUNK if job.stream else FrameKind.DELTAS)
        self._seq = 0  # number of the last entry that was made
        self._chunks: list[bytes] = []
        self._records: list[Record] = []
        self._notified = False
        self._encoder = DeltaEncoder()
        self._notify = notify

    @property
    def new_tokens(self) -> int:
        """Tokens that this attempt has generated."""
        return self.completion_tokens

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

    def hold(self) -> None:
        """Send nothing before the job's end."""
        self._notified = True

    @property
    def held(self) -> bytes:
        """The chunks that are held."""
        return b"".join(self._chunks)

    def hide(self) -> None:
        """Drop what is held: all text, and all chunks but an error at their end.

        The tokens count, but are not a part of the answer.
        """
        errors = [at for at, chunk in enumerate(self._chunks) if is_error(chunk)]
        self._chunks = self._chunks[errors[0] :] if errors else []
        self._records = [
            (*record[:3], "") if len(record) >= 4 else record for record in self._records
        ]

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

    def take(
        self, result: JobResult | None = None
    ) -> tuple[OutputBuffer, bytes, FinalEntry | None] | None:
        """All unsent output as the next entry's frame, with the final entry if there is a result.

        Returns a `JobOutput` (shared/job/step_log.py); its frame is empty if the job ends
        without further output. None if there is nothing to send, or the buffer is discarded.
        """
        self._notified = False
        if self.discarded:
            return None
        frame, chunks, records = b"", self._chunks, self._records
        items: list[Item]
        journal: Journal
        if chunks or records:
            self._seq += 1
            kind = self._kind if result is None else self._last_kind
            is_token = len(chunks) == len(records) == 1
            if is_token and (text := self._encoder.text(chunks[0])) is not None:
                items, token = [text], token_of(records[0], text)
                journal = (records[0],) if token is None else token
            else:
                items = self._encoder.encode(chunks)
                journal = make_journal(records, items)
            # `frames.encode`, without a call: this runs for every token.
            frame = pack((self._id, self._seq, self.generation, kind, journal, items or None))
            self.unflushed.append(frame)
            self._chunks, self._records = [], []
            if result is None:
                return self, frame, None
        elif result is None:
            return None
        segment = self.log_flush().segment if self.unflushed else b""
        return self, frame, FinalEntry(self._seq + 1, segment, result)

    def log_flush(self) -> LogFlush:
        """Take the unflushed entries, to be written to the job's log now."""
        frames, self.unflushed = self.unflushed, []
        self.log_started = True
        if self.first_output_at is None:  # the first entry is flushed with the step that sends it
            self.first_output_at = time.monotonic()
        first = self._seq - len(frames) + 1
        entries = entries_of(frames, self._id, first, self.generation)
        return LogFlush(self._id, pack_segment(first, entries))
