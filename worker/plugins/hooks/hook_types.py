"""What a hook gets and may return (README.md). Hooks import nothing else of Flotilla."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from worker.plugins.hooks.answer_parts import texts


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
    """Values that a hook leaves for the later ones."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; hooks can't change it."""

    request: Request
    """As the engine got it."""
    parts: list[Any]
    """JSON objects: the answer if it is not streamed, else its chunks."""
    streamed: bool

    @property
    def text(self) -> str:
        """The text of all choices, in order."""
        return "".join(text for part in self.parts for text in texts(part, everything=False))

    @property
    def all_text(self) -> str:
        """As `text`, with reasoning and the arguments of tool calls."""
        return "".join(text for part in self.parts for text in texts(part, everything=True))


@dataclass(frozen=True, slots=True)
class Refusal:
    """The client gets this error instead of an answer."""

    message: str
    code: str = "refused"
    status: int = 400
    """Of the response, 400 to 499."""

    def __post_init__(self) -> None:
        if not 400 <= self.status <= 499:
            raise ValueError(f"the status of a refusal is 400 to 499, not {self.status}")
