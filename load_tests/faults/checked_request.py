"""A request whose right answer is known, so that a client can check every token of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from load_tests.clients.expected_text import expected_text
from load_tests.clients.token_difference import tokens_of
from load_tests.systems.engine import MODEL


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A chat completion request to the simulated engine, and the tokens of its answer."""

    tag: str
    """Part of this prompt only: no other request has the same answer."""
    body: dict[str, Any]
    tokens: tuple[str, ...]

    @property
    def stream(self) -> bool:
        """Whether the answer is streamed."""
        return bool(self.body["stream"])


async def checked_request(tag: str, tokens: int, *, stream: bool) -> CheckedRequest:
    """Make a request whose answer has exactly `tokens` tokens."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Say something. {tag}"}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": stream,
    }
    return CheckedRequest(tag, body, tuple(tokens_of(await expected_text(body))))
