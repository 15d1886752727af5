"""The output of a request whose answer passes hooks: held until it may be passed on.

Deltas are held with the chunks that are made of them, so that neither the client nor the job's log
has more of the answer than the hooks have let pass.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from worker.engines.interface import Journal, Logprobs, Past
from worker.engines.prompt_context import Context
from worker.hooks.texts import texts_by_choice

_EVENT = re.compile(rb"((?:event: [^\n]*\n)?)data: (\{[^\n]*\})\n\n")
_END_OF_EVENT, _DONE = b"\n\n", b"data: [DONE]\n\n"


@dataclass(slots=True)
class HeldDelta:
    """One delta, as the engine journaled it."""

    call: int
    index: int
    token_ids: Sequence[int]
    text: str
    logprobs: Logprobs | None
    own_text: str | None = None
    """The engine's text, where a hook has changed it."""


@dataclass(slots=True)
class HeldEvent:
    """One event of a stream, or a whole answer."""

    raw: bytes
    part: dict[str, Any] | None = None
    """Its JSON object; None for what hooks don't get."""
    _before: bytes = field(init=False, default=b"")

    def __post_init__(self) -> None:
        if self.part is not None:
            self._before = _fingerprint(self.part)

    @classmethod
    def of_stream(cls, raw: bytes) -> HeldEvent:
        """An event with the bytes around it."""
        match = _EVENT.fullmatch(raw)
        return cls(raw, json_object(match[2]) if match else None)

    @property
    def is_end(self) -> bool:
        """Nothing of the answer follows: the end of the stream, or an error."""
        if self.part is None:
            return self.raw == _DONE
        return bool(self.part.get("error")) or self.part.get("type") == "error"

    @property
    def changed(self) -> bool:
        """A hook has changed the object. Raises TypeError or ValueError if it is no JSON now."""
        return self.part is not None and _fingerprint(self.part) != self._before

    def rendered(self) -> bytes:
        """The bytes to pass on."""
        if not self.changed:
            return self.raw
        data = json.dumps(self.part, ensure_ascii=False, separators=(",", ":")).encode()
        match = _EVENT.fullmatch(self.raw)
        return match[1] + b"data: " + data + _END_OF_EVENT if match else data


Held = HeldDelta | HeldEvent


class HeldOutput:
    """Implements `Journal`. `n`: choices per call, to tell which choice of an answer a delta is."""

    def __init__(self, journal: Journal, n: int) -> None:
        self.items: list[Held] = []
        """In order; those that were passed on are removed."""
        self.arrived = asyncio.Event()
        """There is a new event."""
        self._journal = journal
        self._n = n
        self._hidden = False

    def before_end(self) -> list[Held]:
        """The items up to the end of the stream or an error, which is not among them."""
        for number, item in enumerate(self.items):
            if isinstance(item, HeldEvent) and item.is_end:
                return self.items[:number]
        return list(self.items)

    def whole_chunks(self) -> list[Held]:
        """As `before_end`, without deltas of which no chunk has been made yet."""
        items = self.before_end()
        while items and isinstance(items[-1], HeldDelta):
            items.pop()
        return items

    def release(self, items: list[Held]) -> list[HeldEvent]:
        """Journal the deltas of the first `items`; returns their events, to be sent."""
        del self.items[: len(items)]
        events = [item for item in items if isinstance(item, HeldEvent)]
        deltas = [item for item in items if isinstance(item, HeldDelta)]
        if any(event.changed for event in events):
            set_texts(deltas, [event.part for event in events if event.part], self._n)
        for each in deltas:
            self._journal.delta(
                each.call, each.index, each.token_ids, each.text, each.logprobs, each.own_text
            )
        return events

    def hide(self) -> None:
        """Journal the tokens that are held and those that follow without their text.

        They count, but are not a part of the answer.
        """
        self._hidden = True
        held, self.items = self.items, []
        for item in held:
            if isinstance(item, HeldDelta):
                self._journal.delta(item.call, item.index, item.token_ids, "", item.logprobs)

    # --- the engine's journal ---

    def past(self, call: int) -> Past | None:
        """See `Journal.past`."""
        return self._journal.past(call)

    def refuse_past(self, reason: str) -> None:
        """See `Journal.refuse_past`."""
        self._journal.refuse_past(reason)

    def continued(self, how: str, decoded_again: int) -> None:
        """See `Journal.continued`."""
        self._journal.continued(how, decoded_again)

    def keep_here(self) -> None:
        """See `Journal.keep_here`."""
        self._journal.keep_here()

    def context(self, call: int, context: Context) -> None:
        """See `Journal.context`."""
        self._journal.context(call, context)

    def prompt(self, call: int, n_tokens: int, logprobs: Sequence[Any] | None = None) -> None:
        """See `Journal.prompt`."""
        self._journal.prompt(call, n_tokens, logprobs)

    def delta(
        self,
        call: int,
        index: int,
        token_ids: Sequence[int],
        text: str,
        logprobs: Logprobs | None = None,
        own_text: str | None = None,
    ) -> None:
        """Hold a delta."""
        if self._hidden:
            self._journal.delta(call, index, token_ids, "", logprobs)
        else:
            self.items.append(HeldDelta(call, index, token_ids, text, logprobs))

    def chunk(self, data: bytes) -> None:
        """Hold the events in `data`."""
        if self._hidden:
            return
        for event in data.split(_END_OF_EVENT):
            if event:
                self.items.append(HeldEvent.of_stream(event + _END_OF_EVENT))
        self.arrived.set()


def set_texts(deltas: Iterable[HeldDelta], parts: Iterable[dict[str, Any]], n: int) -> None:
    """Give the deltas the text of the parts, each choice its own; `n` choices belong to a call.

    The first delta of a choice gets all of it.
    """
    texts: dict[int, str] = {}
    for part in parts:
        for choice, text in texts_by_choice(part).items():
            texts[choice] = texts.get(choice, "") + text
    for delta in deltas:
        delta.own_text = delta.text
        delta.text = texts.pop(delta.call * n + delta.index, "")


def json_object(raw: bytes) -> dict[str, Any] | None:
    """The JSON object in `raw`; None if it is something else."""
    try:
        value = _loads(raw)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _loads(raw: bytes) -> Any:
    """As json.loads, in a tenth of the time for the numbers of embeddings."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:  # of NaN, too, which json accepts
        return json.loads(raw)


def _fingerprint(part: dict[str, Any]) -> bytes:
    """Two that are equal are of equal objects. Raises TypeError or ValueError if it is no JSON."""
    try:
        return msgspec.json.encode(part)
    except (TypeError, ValueError):
        return json.dumps(part).encode()
