"""Which entries of a job's log one client has had, and which one comes next. Pure.

Entries come as live frames (`next_chunk`, `next_deltas`, `next_end`) and from the log (`add_part`).
In both cases there is no gap and no repetition, and an answer that lacks tokens ends with an error.
A worker that continues the job of another one writes under the next generation: then, and whenever
Redis may have lost writes, the log is read from its first entry on and compared with what the
client has had, by a running CRC-32. So a log in which other entries have taken the place of
delivered ones is never continued. It may be read in parts, so that a long log needs little memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from zlib import crc32

from gateway.core.log_event import LogEvent, ReadMode
from shared.job.errors import StreamReset
from shared.job.frames import DeltaDecoder, FrameKind, Item
from shared.job.job_log import Delta, Entry, Journal, Prompt, read_journal, tokens_in
from shared.job.packing import pack

MALFORMED = (ValueError, TypeError, LookupError)
"""The exceptions of reading a malformed journal or chunk."""


class _Delivered(NamedTuple):
    """The entries that the client has had, while the log is compared with them."""

    seq: int
    """Number of the last entry."""
    crc32: int | None
    """Of the entries up to it; None: not known."""


class EntryOrder:
    """The position of one client in the log of its job."""

    __slots__ = (
        "_crc32",
        "_decoder",
        "_delivered",
        "_start",
        "_tokens",
        "_whole",
        "ended",
        "generation",
        "last_seq",
    )

    def __init__(self, after: int) -> None:
        """The client has the entries up to number `after` already."""
        self.last_seq = after
        """The last entry that was delivered, buffered or compared."""
        self.generation = 0
        """Of the lease under which the last entries were written; 0: not known yet."""
        self.ended = False
        """The job's end was delivered or buffered."""
        self._start = after
        self._tokens = 0  # in the entries behind `_start`
        self._decoder = DeltaDecoder()  # as it is behind entry `last_seq`
        self._crc32: int | None = None if after else 0  # of the entries up to `last_seq`
        self._delivered: _Delivered | None = None  # as long as `last_seq` has not reached it
        self._whole = after > 0  # the next replay reads the log from its first entry on

    @property
    def delivered_seq(self) -> int:
        """The last entry that was delivered or buffered."""
        return self.last_seq if self._delivered is None else self._delivered.seq

    # --- live frames ---

    def next_chunk(
        self, seq: int, generation: int, journal: Journal, items: Sequence[Item] | None
    ) -> bytes | None:
        """The client's bytes of a live chunk; None if it is not the next entry.

        Raises one of MALFORMED; then call `read_whole`.
        """
        if seq != self.last_seq + 1 or generation != self.generation:
            return None
        n_tokens = 1 if type(journal) is int else tokens_in(journal)
        decoder = self._decoder
        # As `_add_items` and `decode`, without a call: this runs for every token.
        if items is not None and len(items) == 1 and type(text := items[0]) is bytes:
            decoder.before = data = decoder.head + text + decoder.tail
            self._crc32 = crc32(text, self._crc32 + 1)  # type: ignore[operator]
        else:
            data = decoder.decode(items or ())
            self._add_items(items or ())
        self._tokens += n_tokens
        self.last_seq = seq
        return data

    def next_deltas(
        self, seq: int, journal: Journal, items: Sequence[Item] | None
    ) -> list[Delta | Prompt]:
        """The records of the next entry. Raises one of MALFORMED, and then has changed nothing."""
        records = read_journal(journal, items or ())
        self._tokens += tokens_in(journal)
        self._add_records(records)
        self.last_seq = seq
        return records

    def next_end(self, seq: int, generated: Any) -> None:
        """The next entry is the job's end. Raises StreamReset if tokens are missing.

        `generated`: how many tokens the worker generated; not an int if no worker ended the job.
        """
        self._check_tokens(generated)
        self.last_seq = seq
        self.ended = True

    def accept(self, generation: int) -> bool:
        """Whether frames of this generation, which is another one, can follow at once.

        That is so as long as nothing was delivered. Else the log has to be read.
        """
        if self.delivered_seq or generation < self.generation:
            return False
        self.generation = generation
        return True

    # --- the log ---

    def read_whole(self) -> None:
        """Have the next replay read the log from its first entry on, and compare it."""
        self._whole = True

    def begin_replay(self) -> int:
        """Number of the entry behind which the log is to be read now."""
        if self._whole:
            self._whole = False
            if self._delivered is None and self.last_seq:
                self._delivered = _Delivered(self.last_seq, self._crc32)
            self.last_seq, self._crc32, self._decoder = 0, 0, DeltaDecoder()
        return self.last_seq

    def check_last(self, last: Entry | None) -> None:
        """Raise StreamReset if the log, whose last entry this is, lacks what was delivered.

        An end with the number of an entry that was delivered shows that the log lacks that entry.
        """
        delivered = self.delivered_seq
        stops_short = last is None or last.seq < delivered
        if stops_short or (last and last.end and last.seq == delivered and not self.ended):
            raise _lacks_entries()

    def add_part(
        self, mode: ReadMode, generation: int, entries: Sequence[Entry], *, more: bool = False
    ) -> list[LogEvent]:
        """The events of `entries` that were not delivered yet.

        `entries` are those behind the number that `begin_replay` has returned, all of them unless
        there are `more`. `generation` is that of the job's latest lease. Raises StreamReset if the
        log lacks entries, has other ones than those that were delivered, or can't be decoded.
        """
        if any(entry.lost for entry in entries):
            raise StreamReset("The log of this job has lost entries.")
        events = []
        try:
            for entry in entries:
                event = self._event(mode, entry)
                self.last_seq = entry.seq
                if self._delivered is None:
                    self._tokens += tokens_in(entry.journal)
                    events.append(event)
                elif entry.seq == self._delivered.seq:
                    self._check_same(self._delivered, entry)
                    self._delivered = None
        except MALFORMED as error:
            raise StreamReset("The log of this job can't be decoded.") from error
        if self._delivered is not None and not more:
            raise _lacks_entries()
        self.generation = generation
        if entries and entries[-1].end:
            self._check_tokens(entries[-1].tokens)
            self.ended = True
        return events

    def _check_same(self, delivered: _Delivered, last: Entry) -> None:
        """`last` is the last delivered entry, as the log has it."""
        if bool(last.end) != self.ended:
            raise _lacks_entries()
        if delivered.crc32 is not None and delivered.crc32 != self._crc32:
            raise StreamReset("The log of this job has other entries than its client has got.")

    def _event(self, mode: ReadMode, entry: Entry) -> LogEvent:
        if entry.end:
            return LogEvent(entry.seq, FrameKind.ENDED, b"")
        if mode is ReadMode.CHUNKS:
            self._add_items(entry.items)
            return LogEvent(entry.seq, FrameKind.CHUNK, self._decoder.decode(entry.items))
        records = read_journal(entry.journal, entry.items)
        self._add_records(records)
        return LogEvent(entry.seq, FrameKind.DELTAS, records)

    # The chunks are determined by their encoded form, which is shorter. 1 is added for each entry,
    # so that the same bytes, divided in another way, have another sum.

    def _add_items(self, items: Sequence[Item]) -> None:
        single = len(items) == 1 and type(items[0]) is bytes
        self._add(items[0] if single else pack(items))  # type: ignore[arg-type]

    def _add_records(self, records: Sequence[Delta | Prompt]) -> None:
        self._add(pack(records))

    def _add(self, data: bytes) -> None:
        self._crc32 = crc32(data, (self._crc32 or 0) + 1)

    def _check_tokens(self, generated: Any) -> None:
        if self._start == 0 and isinstance(generated, int) and generated != self._tokens:
            raise StreamReset("This answer lacks tokens that its worker has generated.")


def _lacks_entries() -> StreamReset:
    return StreamReset("The log of this job lacks what its client has got already.")
