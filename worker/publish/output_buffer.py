"""A buffer: what one job has produced, until it stands in the job's log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shared.protocol.chunk_template import DeltaEncoder
from shared.protocol.frames import FrameKind, encode, entries_of
from shared.protocol.job import LeasedJob
from shared.protocol.job_log import Record, make_journal, pack_segment
from shared.protocol.result import JobResult
from shared.protocol.step_log import FinalEntry, JobStream, LogFlush

if TYPE_CHECKING:
    from worker.publish.publisher import Publisher


class OutputBuffer(JobStream):
    """What one job has to say. It is the engine's `Journal` of the job."""

    __slots__ = (
        "_chunks",
        "_folder",
        "_id",
        "_kind",
        "_last_kind",
        "_marked",
        "_publisher",
        "_records",
        "_seq",
        "completion_tokens",
        "dropped",
        "entered",
        "kept",
        "logged",
        "prompt_tokens",
    )

    def __init__(self, job: LeasedJob, publisher: Publisher) -> None:
        super().__init__(job)
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.entered = False
        """The engine has taken the job in."""
        self.dropped = False
        """The job is not ours any more: nothing of it is sent."""
        self.kept: list[bytes] = []
        """The last frames, those whose entries are not in the job's log yet."""
        self.logged = False
        """The job's log has been begun."""
        self._id = job.id
        self._kind = int(FrameKind.CHUNK if job.stream else FrameKind.DELTAS)
        self._last_kind = int(FrameKind.LAST_CHUNK if job.stream else FrameKind.DELTAS)
        self._seq = 0  # number of the last entry that was made
        self._chunks: list[bytes] = []
        self._records: list[Record] = []
        self._marked = False
        self._folder = DeltaEncoder()
        self._publisher = publisher

    def prompt(self, call: int, n_tokens: int) -> None:
        # Sent with the first delta: as long as its log is empty, another worker may start the job.
        self.entered = True
        self.prompt_tokens += n_tokens
        self._records.append((call, n_tokens))

    def delta(self, call: int, index: int, token_ids: Sequence[int], text: str) -> None:
        self.completion_tokens += len(token_ids)
        self._records.append((call, index, token_ids, text))
        if not self._marked:
            self._mark()

    def chunk(self, data: bytes) -> None:
        """Bytes for the client."""
        self._chunks.append(data)
        if not self._marked:
            self._mark()

    def _mark(self) -> None:
        self._marked = True
        self._publisher.mark(self)

    def take(
        self, answer: JobResult | None = None
    ) -> tuple[OutputBuffer, bytes, FinalEntry | None] | None:
        """Everything unsent, as the next entry's frame, and the end if there is an answer."""
        self._marked = False
        if self.dropped:
            return None
        frame, chunks, records = b"", self._chunks, self._records
        if chunks or records:
            self._seq += 1
            items = self._folder.encode(chunks)
            kind = self._kind if answer is None else self._last_kind
            journal = make_journal(records, items)
            frame = encode(self._id, self._seq, kind, items or None, journal, self.generation)
            self.kept.append(frame)
            self._chunks, self._records = [], []
            if answer is None:
                return self, frame, None
        elif answer is None:
            return None
        segment = self.log_flush().segment if self.kept else b""
        return self, frame, FinalEntry(self._seq + 1, segment, answer)

    def log_flush(self) -> LogFlush:
        """The entries that go into the job's log now."""
        kept, self.kept = self.kept, []
        self.logged = True
        first = self._seq - len(kept) + 1
        entries = entries_of(kept, self._id, first, self.generation)
        return LogFlush(self._id, pack_segment(first, entries))
