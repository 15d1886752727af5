"""The log of a job: what its client was sent (chunks) and what the engine generated (journal).

Entries are numbered 1, 2, 3, ... without a gap; the number is the entry's id in Redis, the `seq` of
its frame and the `id:` of its event. The last entry carries only `end`, the job's terminal state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack

_pack = msgpack.Packer(autoreset=True).pack


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
    chunk: bytes
    """SSE bytes; empty if the step sent nothing."""
    journal: bytes
    """Packed deltas; empty if there were none."""
    end: str
    """The job's terminal state on the last entry, else empty."""


def pack_journal(records: Iterable[Delta | Prompt]) -> bytes:
    """The journal part of one entry: msgpack of `[call, choice, ids, text]` and `[call, n]`."""
    packed: bytes = _pack(list(records))
    return packed


def unpack_journal(packed: bytes) -> list[Delta | Prompt]:
    """Inverse of `pack_journal`."""
    if not packed:
        return []
    records = msgpack.unpackb(packed, raw=False, use_list=False)
    return [Delta(*r) if len(r) == 4 else Prompt(*r) for r in records]


def parse_entries(raw: Iterable[Any]) -> list[Entry]:
    """Entries as XRANGE gives them."""
    entries = []
    for entry_id, fields in raw:
        seq = int(entry_id.split(b"-")[0])
        pairs = fields if isinstance(fields, dict) else dict(zip(*[iter(fields)] * 2, strict=True))
        end = pairs.get(b"end", b"").decode()
        entries.append(Entry(seq, pairs.get(b"c", b""), pairs.get(b"j", b""), end))
    return entries


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
