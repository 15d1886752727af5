"""What a hook gets and what it may return. README.md beside this file explains hooks.

A hook imports these names, and nothing else of Flotilla.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from worker.hooks.texts import text_places


@dataclass(slots=True)
class Request:
    """A request on its way to the engine."""

    path: str
    """The engine's route, as `/v1/chat/completions`."""
    job_id: str
    body: dict[str, Any]
    """The request's JSON object; a `before` hook may change it. Empty if it is not JSON."""
    raw: bytes
    """The request's body as it came."""
    state: dict[str, Any] = field(default_factory=dict)
    """For the hooks themselves: a value that one puts here is there for the later ones."""


@dataclass(slots=True)
class Answer:
    """What is passed to the client if the hook returns None or this answer."""

    request: Request
    """As the engine got it."""
    parts: list[dict[str, Any]]
    """JSON objects: the answer if it is not streamed, else chunks. A hook may change each of them
    in place, but not their number."""
    streamed: bool
    final: bool
    """Nothing follows. `parts` is empty if all were passed before."""

    @property
    def text(self) -> str:
        """The text of the answer in these parts: that of all choices, in order."""
        return "".join(holder[key] for holder, key in self._places(everything=False))

    @property
    def all_text(self) -> str:
        """As `text`, with reasoning and the arguments of tool calls."""
        return "".join(holder[key] for holder, key in self._places(everything=True))

    def change_text(self, change: Callable[[str], str]) -> None:
        """Replace each text by `change(text)`, reasoning and arguments of tool calls included."""
        for part in self.parts:
            for holder, key in text_places(part, everything=True, repeated=True):
                holder[key] = change(holder[key])

    def _places(self, *, everything: bool) -> list[tuple[dict[str, Any], str]]:
        return [place for part in self.parts for place in text_places(part, everything=everything)]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The client gets this error instead of an answer, and the engine's request is aborted."""

    message: str
    code: str = "refused"
    status: int = 400
    """Of the response, 400 to 499. A stream that has begun ends with the error as an event."""

    def __post_init__(self) -> None:
        if not 400 <= self.status <= 499:
            raise ValueError(f"the status of a refusal is 400 to 499, not {self.status}")


class Hold(Enum):
    """See HOLD."""

    HOLD = auto()


HOLD = Hold.HOLD
"""Returned by an `after_chunk` hook: keep these parts; the next call gets them with the next ones.

Not for the final call.
"""
