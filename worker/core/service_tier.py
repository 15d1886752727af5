"""`service_tier` in an answer: OpenAI names the tier that served the request, vLLM does not.

Only a request that names a tier gets it, in its whole answer or in each of its chunks; for all
others it costs a search in their body.
"""

from __future__ import annotations

import re

import msgspec

from worker.core.asgi import is_error

_NAME = b'"service_tier"'
_UNSET = re.compile(rb'"service_tier"\s*:\s*(?:null|"[a-z_]*")')
_SERVED_AS = {"auto": "default", "default": "default", "flex": "flex", "priority": "priority"}
_END_OF_CHUNK = b"}\n\n"


class _Body(msgspec.Struct):
    service_tier: str | None = None


_decode_body = msgspec.json.Decoder(_Body).decode


def requested_tier(body: bytes) -> str:
    """The tier that serves a request with this body; empty if the request names none."""
    if _NAME not in body:
        return ""
    try:
        return _SERVED_AS.get(_decode_body(body).service_tier or "", "")
    except ValueError:  # msgspec's
        return ""


def add_tier(answer: bytes, tier: str) -> bytes:
    """A whole answer with its tier; unchanged if it is not a JSON object.

    It is not parsed, because it may be long. vLLM's answers have the member once, behind the
    choices, and it is null. In a text its quotes would have a backslash.
    """
    if not (answer.startswith(b"{") and answer.endswith(b"}")):
        return answer
    member = b'"service_tier":"%b"' % tier.encode()
    at = answer.rfind(_NAME)
    unset = _UNSET.match(answer, at) if at > 0 and answer[at - 1 : at] != b"\\" else None
    if unset is not None:
        return b"%b%b%b" % (answer[:at], member, answer[unset.end() :])
    return b"%b%b%b}" % (answer[:-1], b"," if len(answer) > 2 else b"", member)


def chunk_end(tier: str) -> bytes:
    """How an event with this tier ends."""
    return b',"service_tier":"%b"}\n\n' % tier.encode()


def with_chunk_end(data: bytes, end: bytes) -> bytes:
    """Server-sent events, each of which ends with its JSON object, with this end; not errors."""
    return data if is_error(data) else data.replace(_END_OF_CHUNK, end)


class TierEdit:
    """Names the tier in a whole answer and in every chunk of a stream; see `AnswerEdit`."""

    __slots__ = ("_end", "_tier")

    def __init__(self, tier: str) -> None:
        self._tier = tier
        self._end = chunk_end(tier)

    def chunk(self, data: bytes) -> bytes:
        """See `AnswerEdit.chunk`."""
        return with_chunk_end(data, self._end)

    def whole(self, body: bytes) -> bytes:
        """See `AnswerEdit.whole`."""
        return add_tier(body, self._tier)
