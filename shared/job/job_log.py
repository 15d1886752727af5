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
from typing import Any, NamedTuple

import msgpack

from shared.job.frames import Item
from shared.job.packing import pack

_HEAD_BYTES = 18
"""Two numbers at most."""

Journal = int | Sequence[Any] | None
"""A journal as it is packed; see the module."""


class Delta(NamedTuple):
    """One engine step's tokens of one sequence."""

    call: int
    """Which engine call of the job: completions with several prompts make several."""
    choice: int
    """Which of its `n` choices."""
    token_ids: Sequence[int]
    text: str
    logprobs: Any = None
    """As the engine journaled them (worker/engines/interface.py); None if none were requested."""


class Prompt(NamedTuple):
    """The length of a call's prompt in tokens; journaled once, before its first delta."""

    call: int
    tokens: int
    logprobs: Any = None
    """As the engine journaled them; None if none were requested."""

    @property
    def is_context(self) -> bool:
        """Made by `context_record`: it is no prompt."""
        return self.call < 0


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


Record = (
    tuple[int, int, Sequence[int], str]
    | tuple[int, int, Sequence[int], str, Any]
    | tuple[int, int]
    | tuple[int, int, Any]
)
"""A Delta or a Prompt, or a plain tuple of its fields, which is faster to make. Logprobs are left
out where there are none: four fields or more are a Delta, fewer a Prompt."""


def make_journal(records: Sequence[Record], items: Sequence[Item] = ()) -> Journal:
    """The journal of an entry whose chunks are `items`."""
    if len(records) == len(items) == 1:
        token = token_of(records[0], items[0])
        return (records[0],) if token is None else token
    texts = [item for item in items if isinstance(item, bytes)]
    journal: list[Record | int] = []
    for record in records:
        token = token_of(record, texts[0]) if texts else None
        journal.append(record if token is None else token)
        if token is not None:
            del texts[0]
    return journal or None


def token_of(record: Record, text: Item) -> int | None:
    """The token that stands for a record, as its text is that of its chunk; None: nothing does."""
    if len(record) >= 4 and record[3].encode() == text and (len(record) == 4 or record[4] is None):
        call, choice, ids = record[:3]
        if call == choice == 0 and len(ids) == 1:
            return ids[0]
    return None


def context_record(call: int, context: Sequence[int]) -> Record:
    """What an engine call depends on, to be compared by later attempts: see the module."""
    return ~call, 0, context


def read_journal(journal: Journal, items: Sequence[Item] = ()) -> list[Delta | Prompt]:
    """Inverse of `make_journal`. Raises ValueError, TypeError or LookupError for a damaged one."""
    texts = [item for item in items if isinstance(item, bytes)]
    records: list[Delta | Prompt] = []
    for record in [journal] if isinstance(journal, int) else journal or ():
        if isinstance(record, int):
            records.append(Delta(0, 0, (record,), texts.pop(0).decode()))
        elif len(record) >= 4:
            call, choice, ids, text, *more = record
            text = text.decode() if isinstance(text, bytes) else text
            records.append(Delta(call, choice, tuple(ids), text, *more))
        else:
            records.append(Prompt(*record))
    return records


def tokens_in(journal: Journal) -> int:
    """How many tokens a journal records. Raises TypeError for a damaged one."""
    if isinstance(journal, int):
        return 1
    return sum(
        1 if isinstance(record, int) else len(record[2]) if len(record) >= 4 else 0
        for record in journal or ()
    )


def prompt_tokens_in(journal: Journal) -> int:
    """How many tokens the prompts in a journal have. Raises TypeError or LookupError for a damaged
    one."""
    if journal is None or isinstance(journal, int):
        return 0
    prompts = (each for each in journal if not isinstance(each, int) and len(each) < 4)
    return sum(tokens for call, tokens, *_ in prompts if call >= 0)


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


@dataclass(slots=True)
class Transcript:
    """The sum of a journal: text and token counts, per call and choice."""

    texts: dict[tuple[int, int], list[str]]
    tokens: dict[tuple[int, int], int]
    prompt_tokens: int = 0

    @classmethod
    def empty(cls) -> Transcript:
        """A transcript without entries."""
        return cls({}, {})

    def add(self, records: Iterable[Delta | Prompt]) -> None:
        """Add the records of one entry; call it in the order of the entries."""
        for record in records:
            if isinstance(record, Prompt):
                self.prompt_tokens += record.tokens
                continue
            choice = (record.call, record.choice)
            self.texts.setdefault(choice, []).append(record.text)
            self.tokens[choice] = self.tokens.get(choice, 0) + len(record.token_ids)

    @property
    def completion_tokens(self) -> int:
        """Tokens of all choices together."""
        return sum(self.tokens.values())

    def usage(self) -> dict[str, int]:
        """OpenAI's usage object."""
        prompt, completion = self.prompt_tokens, self.completion_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    def choices(self) -> list[dict[str, Any]]:
        """`[{index, text, tokens}]`, numbered over all calls, as the completions endpoint does."""
        return [
            {"index": i, "text": "".join(self.texts[choice]), "tokens": self.tokens[choice]}
            for i, choice in enumerate(sorted(self.texts))
        ]
