"""Which events of an engine's stream are errors."""

from __future__ import annotations

_BEGINNINGS = (b'data: {"error"', b"event: error\n")
"""The beginnings of OpenAI's and of Anthropic's error events."""


def is_error(event: bytes) -> bool:
    """Whether this is an error event, as vLLM makes them."""
    return event.startswith(_BEGINNINGS)
