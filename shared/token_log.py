"""The log of a job: what its client was sent (chunks) and what the engine generated (journal).

It is a list in Redis, written once per engine step. Entries are numbered 1, 2, 3, ... without a
gap: an entry's number is its place in the list, the `seq` of its frame and the `id:` of its event.
The last entry carries only the job's terminal state.

An entry is a few msgpack objects back to back. First the step's folded chunks (envelope.py), nil if
there were none; then the journal's records:

- `[call, choice, ids, text]`, a Delta;
- `[call, n]`, a Prompt;
- `id`, the usual Delta, of one token of the only sequence, whose text is the next of the step's
  middles as it stands.

The last entry is one string. An empty entry stands for one that Redis has lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack

from shared.envelope import Item

# Short strings get a head of one byte, which `bin` does not have.
_packer = msgpack.Packer(use_bin_type=False, autoreset=True)
_pack = _packer.pack

NO_CHUNKS: bytes = _pack(None)
"""The chunks' part of an entry without any."""


class Delta(NamedTuple):
    """One engine step's tokens of one sequence."""

    call: int
    """Which generation of the job: completions with several prompts make several."""
    choice: int
    """Which choice of it (`n`)."""
    token_ids: Sequence[int]
    text: str


class Prompt(NamedTuple):
    """How long a generation's prompt is; journaled once, before its first delta."""

    call: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a log."""

    seq: int
    items: Sequence[Item]
    """The step's chunks, folded; empty if it sent nothing."""
    journal: bytes
    """Packed records; empty if there were none."""
    end: str
    """The job's terminal state on the last entry, else empty."""
    lost: bool = False
    """Redis has lost what stood here."""


def pack_chunks(items: Sequence[Item]) -> bytes:
    """The chunks' part of an entry, and the payload of its frame."""
    packed: bytes = _pack(items)
    return packed


def pack_journal(records: Sequence[Delta | Prompt], items: Sequence[Item] = ()) -> bytes:
    """The journal's part of an entry whose chunks are `items`."""
    if len(records) == len(items) == 1:  # as with nearly every token
        packed: bytes = _pack(_shortest(records[0], items[0]))
        return packed
    middles = [item for item in items if isinstance(item, bytes)]
    parts = []
    for record in records:
        short = _shortest(record, middles[0]) if middles else record
        if short is not record:
            del middles[0]
        parts.append(_pack(short))
    return b"".join(parts)


def _shortest(record: Delta | Prompt, middle: Item) -> Delta | Prompt | int:
    if len(record) == 4 and record[3].encode() == middle:
        call, choice, ids, _ = record
        if call == choice == 0 and len(ids) == 1:
            return ids[0]
    return record


def unpack_journal(packed: bytes, items: Sequence[Item] = ()) -> list[Delta | Prompt]:
    """Inverse of `pack_journal`."""
    middles = iter([item for item in items if isinstance(item, bytes)])
    unpacker = msgpack.Unpacker(raw=False, use_list=False, max_buffer_size=0)
    unpacker.feed(packed)
    records: list[Delta | Prompt] = []
    for record in unpacker:
        if isinstance(record, int):
            records.append(Delta(0, 0, (record,), next(middles).decode()))
        else:
            records.append(Delta(*record) if len(record) == 4 else Prompt(*record))
    return records


def parse_entries(raw: Iterable[bytes], after: int) -> list[Entry]:
    """Entries as LRANGE gives them; `after` is the number of the one before the first."""
    return [_parse(seq, packed) for seq, packed in enumerate(raw, after + 1)]


def _parse(seq: int, packed: bytes) -> Entry:
    if not packed:
        return Entry(seq, (), b"", "", lost=True)
    unpacker: Any = msgpack.Unpacker(raw=True, use_list=False, max_buffer_size=0)
    unpacker.feed(packed)
    head = unpacker.unpack()
    if isinstance(head, bytes):
        return Entry(seq, (), b"", head.decode())
    return Entry(seq, head or (), packed[unpacker.tell() :], "")


@dataclass(slots=True)
class Transcript:
    """What a journal adds up to: text and token counts, per generation and choice."""

    texts: dict[tuple[int, int], list[str]]
    tokens: dict[tuple[int, int], int]
    prompt_tokens: int = 0

    @classmethod
    def empty(cls) -> Transcript:
        return cls({}, {})

    def add(self, records: Iterable[Delta | Prompt]) -> None:
        """Account for the records of one entry, in order."""
        for record in records:
            if isinstance(record, Prompt):
                self.prompt_tokens += record.tokens
                continue
            place = (record.call, record.choice)
            self.texts.setdefault(place, []).append(record.text)
            self.tokens[place] = self.tokens.get(place, 0) + len(record.token_ids)

    @property
    def completion_tokens(self) -> int:
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
        """`[{index, text, tokens}]`, numbered through over all generations, as completions does."""
        return [
            {"index": i, "text": "".join(self.texts[place]), "tokens": self.tokens[place]}
            for i, place in enumerate(sorted(self.texts))
        ]
