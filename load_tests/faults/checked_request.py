"""A request of a test client, and the tokens that an undisturbed fleet answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from load_tests.clients.mixed_client import expected
from load_tests.clients.token_difference import words
from load_tests.systems.engine import MODEL

CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Question:
    """The simulated engine's answer is a function of the request, so it is known beforehand."""

    tag: str
    """In the prompt, and in no other: the answer is nobody else's."""
    body: dict[str, Any]
    tokens: tuple[str, ...]

    @property
    def stream(self) -> bool:
        return bool(self.body["stream"])


async def question(tag: str, tokens: int, *, stream: bool) -> Question:
    """One whose answer has exactly so many tokens."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Say something. {tag}"}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": stream,
    }
    return Question(tag, body, tuple(words(await expected(body))))
