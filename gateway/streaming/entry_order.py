"""Which entries of a job's log one client has had, and which one comes next. Pure.

Entries come as live frames (`next_chunk`, `next_deltas`, `next_end`) and from the log
(`check_part`, `add_part`). In both cases there is no gap, no repetition, no mixture of two attempts
at a job, and no good end of an answer that lacks tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.streaming.log_event import LogEvent, ReadMode
from shared.api.errors import StreamReset
from shared.protocol.chunk_template import DeltaDecoder, Item
from shared.protocol.frames import FrameKind
from shared.protocol.job_log import Delta, Entry, Journal, Prompt, read_journal, tokens_in

MALFORMED = (ValueError, TypeError, LookupError)
"""What reading a malformed journal or chunk raises."""


class EntryOrder:
    """The position of one client in the log of its job."""

    __slots__ = (
        "_decoder",
        "_decoder_valid",
        "_start",
        "_tokens",
        "ended",
        "generation",
        "last_seq",
    )

    def __init__(self, after: int) -> None:
        """The client has the entries up to number `after` already."""
        self.last_seq = after
        """The last entry that was delivered or buffered."""
        self.generation = 0
        """Of the attempt whose entries are delivered; 0: not known yet."""
        self.ended = False
        """The job's end was delivered or buffered."""
        self._start = after
        self._tokens = 0  # in the entries behind `_start`
        self._decoder = DeltaDecoder()
        self._decoder_valid = after == 0  # it has seen all chunks up to `last_seq`

    # --- live frames ---

    def next_chunk(
        self, seq: int, generation: int, journal: Journal, items: Sequence[Item] | None
    ) -> bytes | None:
        """The client's bytes of a live chunk; None if it is not the next entry.

        Raises one of MALFORMED; then call `forget_decoder`.
        """
        if seq != self.last_seq + 1 or generation != self.generation:
            return None
        data = self._decoder.decode(items or ())
        self._tokens += 1 if type(journal) is int else tokens_in(journal)
        self.last_seq = seq
        return data

    def forget_decoder(self) -> None:
        """Decode the log from its first entry at the next replay."""
        self._decoder_valid = False

    def next_deltas(
        self, seq: int, journal: Journal, items: Sequence[Item] | None
    ) -> list[Delta | Prompt]:
        """The records of the next entry. Raises one of MALFORMED, and then has changed nothing."""
        records = read_journal(journal, items or ())
        self._tokens += tokens_in(journal)
        self.last_seq = seq
        return records

    def next_end(self, seq: int, generated: Any) -> None:
        """The next entry is the job's end. Raises StreamReset if tokens are missing.

        `generated`: how many tokens the worker generated; not an int if no worker ended the job.
        """
        self._check_tokens(generated)
        self.last_seq = seq
        self.ended = True

    def switch_attempt(self, generation: int) -> bool:
        """Deliver the attempt of this generation; False: it is an earlier one, to be ignored.

        Raises StreamReset if entries of another attempt were delivered already.
        """
        if generation < self.generation:
            return False
        if self.generation and self.last_seq > self._start:
            raise StreamReset("Another attempt at this job has begun anew.")
        self.generation = generation
        return True

    # --- the log ---

    def replay_after(self, mode: ReadMode) -> int:
        """Number of the entry behind which the log is to be read.

        Chunks are encoded against their predecessors, so without these all are read.
        """
        return self.last_seq if self._decoder_valid or mode is not ReadMode.CHUNKS else 0

    def check_part(self, after: int, generation: int, entries: Sequence[Entry]) -> bool:
        """Check the part of the log behind `after`. False: it lacks what was delivered already.

        Raises StreamReset if entries are lost, or of another attempt.
        """
        if any(entry.lost for entry in entries):
            raise StreamReset("The log of this job has lost entries.")
        if generation != self.generation and entries and not self.switch_attempt(generation):
            raise StreamReset("Another attempt at this job has begun anew.")
        return after + len(entries) >= self.last_seq and bool(entries or not self.last_seq)

    def check_last(self, last: Entry | None) -> None:
        """Raise StreamReset if the log, whose last entry this is, lacks what was delivered.

        An end with the number of an entry that was delivered shows that the log lacks that entry.
        """
        stops_short = last is None or last.seq < self.last_seq
        if stops_short or (last and last.end and last.seq == self.last_seq and not self.ended):
            raise StreamReset("The log of this job lacks what its client has got already.")

    def add_part(self, mode: ReadMode, after: int, entries: Sequence[Entry]) -> list[LogEvent]:
        """The events of those `entries` (all behind number `after`) that were not delivered yet.

        Raises StreamReset if they can't be decoded or lack tokens.
        """
        if after == 0:
            self._decoder = DeltaDecoder()
        try:
            events = [self._event(mode, entry) for entry in entries]
            begin = max(self.last_seq, self._start)
            self._tokens += sum(tokens_in(each.journal) for each in entries if each.seq > begin)
        except MALFORMED as error:
            raise StreamReset("The log of this job can't be decoded.") from error
        fresh = [event for event in events if event.seq > self.last_seq]
        self.last_seq = after + len(entries)
        self._decoder_valid = True
        if entries and entries[-1].end:
            self._check_tokens(entries[-1].tokens)
            self.ended = True
        return fresh

    def _event(self, mode: ReadMode, entry: Entry) -> LogEvent:
        if entry.end:
            return LogEvent(entry.seq, FrameKind.ENDED, b"")
        if mode is ReadMode.CHUNKS:
            return LogEvent(entry.seq, FrameKind.CHUNK, self._decoder.decode(entry.items))
        return LogEvent(entry.seq, FrameKind.DELTAS, read_journal(entry.journal, entry.items))

    def _check_tokens(self, generated: Any) -> None:
        if self._start == 0 and isinstance(generated, int) and generated != self._tokens:
            raise StreamReset("This answer lacks tokens that its worker has generated.")
