"""The log of a job, and what is published of it: entries, frames, deltas and the journal.

A log is a Redis stream with one field, `d`, and ids `<generation>-<number>`. Numbers are 1, 2, 3,
... without a gap, over all attempts at the job; a generation is a time in microseconds by Redis'
clock, and a new one begins with whatever gives the job to a worker or takes it away. Redis refuses
an entry whose id is not above the last one, so a worker that has lost the job can't write: the id
is the fencing token, the client's place, and the point from which the next attempt continues.

An entry is three msgpack objects back to back:

- the journal: what the engine generated in the step, an array of records, `[call, choice, ids,
  text]` for a Delta, `[call, n]` for a Prompt, each with its logprobs behind that if they were
  requested, and `id` for the usual Delta, of one token of the only sequence, whose text is the
  step's next chunk text, unchanged; one such `id` needs no array, and nil is no record. A Prompt of
  a call below 0, without tokens, has the context of call `-1 - call` in place of logprobs
  (worker/engines/interface.py); readers that do not compare contexts may ignore it;
- the items: the step's delta-encoded chunks, nil if it sent none;
- the event, nil in the entry of a step: an array of its name and what belongs to it. See `Event`.

A frame is the array `[job id, generation, number, journal, items, event]`, so an entry follows its
head unchanged, and a message is one or more frames back to back. The gateway decodes them (C code),
finds the job's reader, completes the chunk from its template and writes it: no JSON is parsed for a
token. A lost frame shows as a gap in the numbers and is read from the log.

Chunks are delta-encoded: the chunks of a token stream are the same JSON but for a few bytes of text
in their middle, so only that text is sent, and the template (head and tail) is sent as lengths when
it changes. Items, in the order of their chunks, are

- bytes: the text of a chunk, to be put between the head and the tail of the template;
- a pair `(n, m)`: it sets the template, the first `n` and the last `m` bytes of the chunk before.

Any bytes can be encoded; those that resemble the ones before them become short. An attempt that
continues a log goes on with the template that the entries before it have left; `restarted` begins
with an empty one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgpack

from shared.job.record import pack
from shared.job.states import JobState


class Position(NamedTuple):
    """The id of an entry: positions are in the order of the log."""

    generation: int
    number: int

    def __str__(self) -> str:
        return f"{self.generation}-{self.number}"

    @classmethod
    def read(cls, entry_id: bytes) -> Position:
        """From the id of a stream entry."""
        generation, number = entry_id.split(b"-")
        return cls(int(generation), int(number))


START: Final = Position(0, 0)
"""Before the first entry."""
MALFORMED: Final = (ValueError, TypeError, LookupError, msgpack.exceptions.UnpackException)
"""What reading a damaged entry raises."""


class EventName(StrEnum):
    """What an entry says that is no step of an engine; ends have the names of states."""

    CLAIMED = "claimed"
    """A worker has the job: its id."""
    REQUEUED = "requeued"
    """Its worker was lost: the reason. The next worker continues."""
    HANDED_OVER = "handed_over"
    """Its worker has given it back: the reason."""
    RESTARTED = "restarted"
    """The answer begins anew: what was generated before is void. No client has seen it."""


ENDS: Final = frozenset(state.value for state in JobState if state.terminal)
"""The events that end a job. Behind the name: the tokens that all attempts have generated, nil if
no worker ended the job; 1 if its answer is complete with the chunks of the log, 0 if it is in the
record. In a frame, of a short answer: HTTP status, content type, and body."""

Item = bytes | tuple[int, int]
Journal = int | Sequence[Any] | None
"""As it is packed; see the module."""
Event = Sequence[Any]
"""Name and details, as they are unpacked: bytes for text."""
Frame = tuple[bytes, int, int, Journal, Sequence[Item] | None, Event | None]


class Entry(NamedTuple):
    """One entry of a log."""

    position: Position
    journal: Journal
    items: Sequence[Item]
    """The step's delta-encoded chunks; empty if it sent none."""
    event: str = ""
    """Its name; empty in the entry of a step."""
    details: Sequence[Any] = ()
    """What belongs to the event; bytes for text."""
    size: int = 0
    """Bytes in the log."""


def pack_entry(
    journal: Journal, items: Sequence[Item] | None, event: Sequence[Any] | None = None
) -> bytes:
    """An entry, as the log and a frame have it."""
    return pack((journal, items or None, event))[1:]  # without the head of the array


def frame_head(job_id: str, generation: int) -> bytes:
    """What the frames of one attempt begin with."""
    return b"\x96" + pack(job_id) + pack(generation)


def pack_frame(head: bytes, number: int, entry: bytes) -> bytes:
    """The frame of an entry."""
    return head + pack(number) + entry


def frames(message: bytes) -> Iterator[Frame]:
    """The frames of a message. Raises msgpack's errors if it is malformed."""
    unpacker: Any = msgpack.Unpacker(raw=True, use_list=False, max_buffer_size=0)
    unpacker.feed(message)
    return iter(unpacker)


def read_entry(position: Position, packed: bytes) -> Entry:
    """An entry of the log. Raises msgpack's errors or ValueError if it is damaged."""
    unpacker: Any = msgpack.Unpacker(raw=True, use_list=False, max_buffer_size=0)
    unpacker.feed(packed)
    journal, items, event = unpacker.unpack(), unpacker.unpack(), unpacker.unpack()
    name, details = ("", ()) if event is None else (event[0].decode(), event[1:])
    return Entry(position, journal, items or (), name, details, len(packed))


def read_entries(reply: Iterable[Any]) -> list[Entry]:
    """The entries of a reply to XRANGE. Raises as `read_entry`."""
    return [read_entry(Position.read(entry_id), words[1]) for entry_id, words in reply]


# --- the journal ---


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


# --- deltas ---

# How many chunks of a job may improve a template that fits already: a stream's second chunk shares
# less with its first, which names a role, than its third with its second. The same holds for chunks
# after one that did not fit, such as the name of a tool before its arguments.
_IMPROVE = 6
_IMPROVE_AGAIN = 2


class DeltaEncoder:
    """Encodes the chunks of one job, in its worker."""

    __slots__ = ("_before", "_head", "_improvable", "_length", "_n_head", "_n_tail", "_tail")

    def __init__(self, before: DeltaDecoder | None = None) -> None:
        """`before` has decoded what earlier attempts at the job have encoded: this one goes on."""
        self._before, self._head, self._tail = before.state if before else (b"", b"", b"")
        self._n_head, self._n_tail = len(self._head), len(self._tail)
        self._length = self._n_head + self._n_tail
        self._improvable = _IMPROVE

    def text(self, chunk: bytes) -> bytes | None:
        """The next chunk as its text, as with nearly every token; None: call `encode` for it."""
        n = len(chunk)
        if (
            self._improvable
            or n < self._length
            or not (chunk.startswith(self._head) and chunk.endswith(self._tail))
        ):
            return None
        self._before = chunk
        return chunk[self._n_head : n - self._n_tail]

    def encode(self, chunks: Sequence[bytes]) -> list[Item]:
        """The next chunks of the job, as items."""
        items: list[Item] = []
        for chunk in chunks:
            fits = (
                len(chunk) >= self._length
                and chunk.startswith(self._head)
                and chunk.endswith(self._tail)
            )
            if self._improvable or not fits:
                n, m = _shared(self._before, chunk)
                self._improvable = max(self._improvable - 1, 0 if fits else _IMPROVE_AGAIN)
                if not fits or n + m > self._length:
                    items.append((n, m))
                    self._head, self._tail = chunk[:n], chunk[len(chunk) - m :]
                    self._n_head, self._n_tail, self._length = n, m, n + m
            items.append(chunk[self._n_head : len(chunk) - self._n_tail])
            self._before = chunk
        return items


class DeltaDecoder:
    """Decodes the chunks of one job, in a gateway: it needs every step, from the first."""

    __slots__ = ("before", "head", "tail")

    def __init__(self) -> None:
        self.before = b""
        """The last chunk."""
        self.head = b""
        """Of the template, as `tail`."""
        self.tail = b""

    @property
    def state(self) -> tuple[bytes, bytes, bytes]:
        """The chunk before, and the head and the tail of the template."""
        return self.before, self.head, self.tail

    def decode(self, items: Sequence[Item]) -> bytes:
        """The chunks of one step, back to back."""
        chunks = []
        for item in items:
            if isinstance(item, bytes):
                self.before = self.head + item + self.tail
                chunks.append(self.before)
            else:
                n, m = item
                self.head = self.before[:n]
                self.tail = self.before[len(self.before) - m :]
        return b"".join(chunks)


def _shared(before: bytes, chunk: bytes) -> tuple[int, int]:
    """How many bytes two chunks share at their beginning and at their end, up to a quote.

    A JSON string changes as a whole, even if two texts begin with the same letter.
    """
    n = _common(before, chunk)
    n = chunk.rfind(b'"', 0, n) + 1
    most = min(len(before), len(chunk)) - n
    m = _common(before[::-1], chunk[::-1], most)
    quote = chunk.find(b'"', len(chunk) - m) if m else -1
    return n, 0 if quote < 0 else len(chunk) - quote


def _common(a: bytes, b: bytes, most: int | None = None) -> int:
    """The length of the common prefix of `a` and `b`, at most `most`."""
    low, high = 0, min(len(a), len(b)) if most is None else most
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
