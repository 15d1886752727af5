"""The log of a job: what its client was sent (chunks) and what the engine generated (journal).

Entries are numbered 1, 2, 3, ... without a gap, over all attempts at the job: an entry's number is
the `seq` of its frame and the `id:` of its event. An entry is two msgpack objects back to back:

- the journal: an array of records, `[call, choice, ids, text]` for a Delta, `[call, n]` for a
  Prompt, each with its logprobs behind that if they were requested, and `id` for the usual Delta,
  of one token of the only sequence, whose text is the step's next chunk text, unchanged; one such
  `id` needs no array, and nil is no record;
  A Prompt of a call below 0, without tokens, has the context of call `-1 - call` in place of
  logprobs (worker/engines/prompt_context.py); readers that do not compare contexts may ignore it;
- the step's delta-encoded chunks (frames.py), nil if there were none; in the last entry
  of a job a string instead, its terminal state. The journal of that entry is the number of tokens
  that all attempts have generated, nil if no worker ended the job.

A worker's output is in its step log first (step_log.py). A few steps later it is flushed to the log
of its job, a Redis list of segments: the number of the first entry, how many there are, and the
entries, back to back. A number that is missing belongs to an entry that Redis has lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from shared.job.log import Delta as Delta
from shared.job.log import Item as Item
from shared.job.log import Journal as Journal
from shared.job.log import Prompt as Prompt
from shared.job.log import Record as Record
from shared.job.log import Transcript as Transcript
from shared.job.log import context_record as context_record
from shared.job.log import make_journal as make_journal
from shared.job.log import prompt_tokens_in as prompt_tokens_in
from shared.job.log import read_journal as read_journal
from shared.job.log import token_of as token_of
from shared.job.log import tokens_in as tokens_in
from shared.job.packing import pack

_HEAD_BYTES = 18
"""Two numbers at most."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a log."""

    seq: int
    items: Sequence[Item]
    """The step's delta-encoded chunks; empty if it sent none."""
    journal: Journal
    end: str
    """The job's terminal state on the last entry, else empty."""
    lost: bool = False
    """Redis has lost this entry."""
    tokens: int | None = None
    """How many tokens the job generated, on the last entry of a job that its worker ended."""


def pack_segment(first: int, entries: Sequence[bytes]) -> bytes:
    """A segment of entries, the first of which has number `first`."""
    return b"".join((pack(first), pack(len(entries)), *entries))


def segments_behind(segments: Sequence[bytes], after: int) -> Sequence[bytes]:
    """The segments without those at the beginning that have nothing behind entry number `after`."""
    for index, segment in enumerate(segments):
        unpacker: Any = msgpack.Unpacker(max_buffer_size=0)
        unpacker.feed(segment[:_HEAD_BYTES])
        if unpacker.unpack() + unpacker.unpack() - 1 > after:
            return segments[index:]
    return segments[:0]


def parse_segments(segments: Iterable[bytes], after: int | None = None) -> list[Entry]:
    """The entries of segments in their order; those behind number `after`, if it is given.

    Entries that are missing between two segments are `lost`.
    """
    entries: list[Entry] = []
    for segment in segments:
        unpacker: Any = msgpack.Unpacker(raw=True, use_list=False, max_buffer_size=0)
        unpacker.feed(segment)
        first, count = unpacker.unpack(), unpacker.unpack()
        after = first - 1 if after is None else after
        entries += [Entry(seq, (), None, "", lost=True) for seq in range(after + 1, first)]
        after = max(after, first - 1)
        for seq in range(first, first + count):
            journal, payload = unpacker.unpack(), unpacker.unpack()
            if seq <= after:
                continue
            if isinstance(payload, bytes):
                entries.append(Entry(seq, (), None, payload.decode(), tokens=journal))
            else:
                entries.append(Entry(seq, payload or (), journal, ""))
            after = seq
    return entries
