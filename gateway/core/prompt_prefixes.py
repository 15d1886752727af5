"""What of a request tells which worker may have run the beginning of its prompt (rules.py).

The text is that of the body, not of the rendered prompt: the calls of a conversation have the same
bytes up to its last turn, as long as their client writes JSON in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.api.endpoint import InputKind
from shared.job.rules import LEAST_BYTES, prefix_hashes

_FIELDS: Mapping[InputKind, str] = {
    InputKind.MESSAGES: "messages",
    InputKind.BLOCKS: "messages",
    InputKind.RESPONSE: "input",
    InputKind.PROMPT: "prompt",
}
"""Of the endpoints that generate text."""
_START_CHARS = LEAST_BYTES  # a prompt that is shorter is computed soon, wherever it runs


def prompt_prefixes(kind: InputKind, body: bytes, tenant: str) -> bytes:
    """The hashes of the prefixes of a body's prompt; empty if it is short, or of another kind."""
    field = _FIELDS.get(kind)
    if field is None:
        return b""
    at = body.find(f'"{field}"'.encode())
    return prefix_hashes(memoryview(body)[at:], tenant) if at >= 0 else b""


def conversation_start(kind: InputKind, fields: Mapping[str, Any]) -> str:
    """What the calls of one conversation have in common, and other conversations have not: the
    first message of its user, or the beginning of a prompt. Empty if there is none."""
    field = _FIELDS.get(kind)
    given = None if field is None else fields.get(field)
    if isinstance(given, list):
        users = (each for each in given if isinstance(each, dict) and each.get("role") == "user")
        given = next(users, {}).get("content")
    if isinstance(given, list):
        parts = (each.get("text") for each in given if isinstance(each, dict))
        given = next((each for each in parts if isinstance(each, str)), "")
    return given[:_START_CHARS] if isinstance(given, str) else ""
