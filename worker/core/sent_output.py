"""What a job's log holds of its answer so far: where the next attempt has to continue. Pure.

`ContinuationReader` turns the entries of the log into a `Continuation`: the past of each engine
call, and the chunks that the client has. The engine makes these once more; `SentChunks` drops
them, after a comparison with the log of what does not differ by chance: `comparable` events, with
the ids that the client has (`RepeatedIds`).

Events are `data: {...}`, or `event: <name>` with such a line behind it.
"""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from shared.job.log import Delta, DeltaDecoder, Entry, Item, Prompt, read_journal
from worker.engines.interface import Generated, Logprobs, Past

_INDEX = re.compile(rb'"choices": ?\[\{"index": ?(\d+)')
_CREATED = re.compile(rb'"created(?:_at)?": ?\d+')
_ID = re.compile(rb'"(?:id|item_id|call_id)": ?("[^"\\]{1,200}")')
_DATA = b"data: "
_MESSAGE_EVENTS = ("message_", "content_block_")
"""How the types of Anthropic's events begin."""


class UnusableLog(Exception):
    """The log lacks entries, or they can't be read: nothing can be continued from it."""


class ContinuationDiffers(Exception):
    """The engine has not made the chunks again that the client has."""


@dataclass(slots=True)
class Continuation:
    """The answer so far, over all earlier attempts."""

    pasts: dict[int, Past] = field(default_factory=dict)
    """By engine call; of every call that has reached the engine."""
    contexts: dict[int, Sequence[int]] = field(default_factory=dict)
    """By engine call; of none whose worker's release did not journal it."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    chunks: list[bytes] = field(default_factory=list)
    """The chunks that were sent, in order."""
    decoder: DeltaDecoder = field(default_factory=DeltaDecoder)
    """It has decoded `chunks`, as the gateways have."""


class ContinuationReader:
    """Adds up the entries of a log, from the first one on. `continuation` has the sum."""

    def __init__(self) -> None:
        self.continuation = Continuation()
        self._deltas: dict[int, list[Generated]] = {}

    def add(self, entries: Iterable[Entry]) -> None:
        """Add the next entries. Raises UnusableLog."""
        for entry in entries:
            try:
                self._add_chunks(entry.items)
                for record in read_journal(entry.journal, entry.items):
                    self._add_record(record)
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                raise UnusableLog(f"entry {entry.position} of the log can't be read") from error

    def _add_chunks(self, items: Sequence[Item]) -> None:
        for item in items:
            chunk = self.continuation.decoder.decode([item])
            if isinstance(item, bytes):
                self.continuation.chunks.append(chunk)

    def _add_record(self, record: Delta | Prompt) -> None:
        whole, call = self.continuation, record.call
        if isinstance(record, Prompt) and record.is_context:
            whole.contexts[~call] = tuple(record.logprobs)
        elif isinstance(record, Prompt):
            self._deltas[call] = []
            whole.pasts[call] = Past(self._deltas[call], _texts(record.logprobs))
            whole.prompt_tokens += record.tokens
        else:
            ids = tuple(record.token_ids)
            made = Generated(record.choice, ids, record.text, _logprobs(record.logprobs))
            self._deltas[call].append(made)  # a call without a prompt is a LookupError
            whole.completion_tokens += len(ids)


def _logprobs(packed: Any) -> Logprobs | None:
    return None if packed is None else _texts(packed)


def _texts(packed: Any) -> Any:
    """A value from the log, whose strings are bytes there, as it was journaled."""
    if isinstance(packed, bytes):
        return packed.decode()
    if isinstance(packed, list | tuple):
        return tuple(_texts(part) for part in packed)
    return packed


class RepeatedIds:
    """The random ids of an answer that is made again: new -> as the client has it.

    Where an event that was sent is made again, its ids take the places of the new ones; later
    events, which the client does not have, get them too.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}

    def learn(self, made: bytes, sent: bytes) -> None:
        """`made` is the event `sent`, made again."""
        new, old = _ID.findall(made), _ID.findall(sent)
        if len(new) == len(old):
            pairs = zip(new, old, strict=True)
            self._known |= {made_id: sent_id for made_id, sent_id in pairs if made_id != sent_id}

    def replaced(self, event: bytes) -> bytes:
        """The event with the ids that the client has."""
        for new, old in self._known.items():
            event = event.replace(new, old)
        return event


class SentChunks:
    """The chunks of a stream that its client has, by the index of their choice.

    The chunks of several choices are mixed, and another attempt may mix them otherwise. So they are
    counted by choice; those without one (usage, [DONE]) are counted together.
    """

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._left: dict[int | None, deque[bytes]] = {}
        self._n_repeated: Counter[int | None] = Counter()
        self._created = b""
        self._ids = RepeatedIds()
        for chunk in chunks:
            self._left.setdefault(_choice_of(chunk), deque()).append(chunk)
            if not self._created:
                created = _CREATED.search(chunk)
                self._created = created[0] if created else b""

    def unsent(self, chunk: bytes) -> bytes | None:
        """The chunk with the stream's own `created` and ids; None if the client has it already.

        Raises ContinuationDiffers if it is not the chunk that the client has.
        """
        if self._created:
            chunk = _CREATED.sub(self._created, chunk, 1)
        chunk = self._ids.replaced(chunk)
        if not self._left:
            return chunk
        choice = _choice_of(chunk)
        sent = self._left.get(choice)
        if not sent:
            return chunk
        expected = sent.popleft()
        if not sent:
            del self._left[choice]
        if chunk != expected:
            self._ids.learn(chunk, expected)
            chunk = self._ids.replaced(chunk)
        if chunk != expected and comparable(chunk) != comparable(expected):
            raise ContinuationDiffers(
                f"chunk {self._n_repeated[choice]} of choice {choice} is another one than was sent"
            )
        self._n_repeated[choice] += 1
        return None

    def check_all_made(self) -> None:
        """Raise ContinuationDiffers if the answer has ended without some that the client has."""
        if self._left:
            missing = sum(map(len, self._left.values()))
            raise ContinuationDiffers(f"{missing} chunks that were sent were not made again")


def _choice_of(chunk: bytes) -> int | None:
    """The index of a chunk's first choice; None if it has none."""
    found = _INDEX.search(chunk)
    if found:
        return int(found[1])
    choices = parsed(chunk).get("choices")
    index = choices[0].get("index") if choices else None
    return index if isinstance(index, int) else None


def parsed(event: bytes) -> dict[str, Any]:
    """The JSON object of an event; empty if it has none."""
    if event.startswith(b"event: "):
        event = event[event.find(b"\n") + 1 :]
    try:
        value = json.loads(event.removeprefix(_DATA))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def comparable(event: bytes) -> object:
    """An event without what differs by chance.

    That is the ids of tool calls and the signatures of thoughts, which are random, and what is the
    worker's rather than the answer's: its fingerprint, and how much of the prompt it had cached.
    """
    value = parsed(event)
    if not value:
        return event
    if "choices" in value:
        _strip_chunk(value)
    elif str(value.get("type")).startswith(_MESSAGE_EVENTS):
        _strip_message_event(value)
    elif isinstance(response := value.get("response"), dict):
        response.pop("usage", None)
    return value


def _strip_chunk(chunk: dict[str, Any]) -> None:
    """OpenAI's chunks."""
    chunk.pop("system_fingerprint", None)
    if chunk.get("usage"):
        chunk["usage"].pop("prompt_tokens_details", None)
    for choice in chunk["choices"] or ():
        for call in (choice.get("delta") or {}).get("tool_calls") or ():
            if call.get("id"):
                call["id"] = ""


def _strip_message_event(event: dict[str, Any]) -> None:
    """Anthropic's events. Their `input_tokens` are those that were not cached."""
    for holder in (event, event.get("message") or {}):
        holder.pop("usage", None)
    (event.get("content_block") or {}).pop("id", None)
    (event.get("delta") or {}).pop("signature", None)
