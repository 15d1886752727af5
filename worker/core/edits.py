"""What the worker changes in requests and answers, because vLLM can't set it.

A response (OpenAI's Responses API) is run as one that is not stored and has no history: the gateway
has put the history into the input, and the body's member `flotilla.response` has what the client
asked for. `service_tier` is named only for a request that names one, in its whole answer or in each
of its chunks; for all others it costs a search in their body.
"""

from __future__ import annotations

import re

import msgspec

from shared.api.endpoint import Endpoint, StreamFormat
from shared.job.responses import ResponseOptions, opening, response_id
from shared.store.queue import HeldJob

_TIER = b'"service_tier"'
_UNSET = re.compile(rb'"service_tier"\s*:\s*(?:null|"[a-z_]*")')
_SERVED_AS = {"auto": "default", "default": "default", "flex": "flex", "priority": "priority"}
_END_OF_CHUNK = b"}\n\n"
_ERROR_BEGINNINGS = (b'data: {"error"', b"event: error\n")
"""The beginnings of OpenAI's and of Anthropic's error events."""
_CHANGED = tuple(
    f"event: response.{name}\n".encode() for name in ("created", "in_progress", "completed")
)
"""The events that hold the whole response."""
_DATA = b"\ndata: "
_INCOMPLETE = b'"incomplete"'
_encode = msgspec.json.encode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
"""The members of an object, each as JSON that is not parsed, because it may have megabytes."""


class _Body(msgspec.Struct):
    service_tier: str | None = None


_decode_body = msgspec.json.Decoder(_Body).decode


def is_error(event: bytes) -> bool:
    """Whether this is an error event, as vLLM makes them."""
    return event.startswith(_ERROR_BEGINNINGS)


def engine_body(job: HeldJob, endpoint: Endpoint) -> bytes:
    """The body for the engine: with the id that vLLM is to give to a response."""
    if endpoint.stream is StreamFormat.RESPONSE_EVENTS and job.body.startswith(b'{"'):
        return b'{"request_id":"%b",%b' % (response_id(job.id).encode(), job.body[1:])
    return job.body


def answer_edit(job: HeldJob, endpoint: Endpoint | None) -> AnswerEdit | None:
    """What is changed in the engine's answer; None: nothing."""
    if endpoint is None:
        return None
    tier = requested_tier(job.body) if endpoint.policy.service_tier else ""
    if tier:  # one without the right to `priority` runs as `default`, and a batch's line as `flex`
        tier = job.share.lane or tier
    if endpoint.stream is StreamFormat.RESPONSE_EVENTS:
        return ResponseEdit(job.id, job.body, tier)
    return TierEdit(tier) if tier else None


def requested_tier(body: bytes) -> str:
    """The tier that serves a request with this body; empty if the request names none."""
    if _TIER not in body:
        return ""
    try:
        return _SERVED_AS.get(_decode_body(body).service_tier or "", "")
    except ValueError:  # msgspec's
        return ""


class TierEdit:
    """Names the tier. Both methods return what they do not change as is."""

    __slots__ = ("_end", "_member")

    def __init__(self, tier: str) -> None:
        self._member = b'"service_tier":"%b"' % tier.encode()
        self._end = b",%b}\n\n" % self._member

    def chunk(self, data: bytes) -> bytes:
        """Server-sent events of a stream, each of which ends with its JSON object; not errors."""
        return data if is_error(data) else data.replace(_END_OF_CHUNK, self._end)

    def whole(self, body: bytes) -> bytes:
        """An answer in one piece; unchanged if it is not a JSON object.

        It is not parsed, because it may be long. vLLM's answers have the member once, behind the
        choices, and it is null. In a text its quotes would have a backslash.
        """
        if not (body.startswith(b"{") and body.endswith(b"}")):
            return body
        at = body.rfind(_TIER)
        unset = _UNSET.match(body, at) if at > 0 and body[at - 1 : at] != b"\\" else None
        if unset is not None:
            return b"%b%b%b" % (body[:at], self._member, body[unset.end() :])
        return b"%b%b%b}" % (body[:-1], b"," if len(body) > 2 else b"", self._member)


class ResponseEdit:
    """Completes a response, and renames events that vLLM misnames. Both methods are as those of
    TierEdit. `tier` is empty where none is named."""

    __slots__ = ("_fields", "_opening")

    def __init__(self, job_id: str, body: bytes, tier: str) -> None:
        options = ResponseOptions.of_body(body)
        self._fields = options.shown()
        self._opening = opening(job_id, body) if options.background else b""
        if tier:
            self._fields["service_tier"] = tier

    def chunk(self, data: bytes) -> bytes:
        """One event of the stream."""
        if not data.startswith(_CHANGED):
            return data
        if self._opening and data.startswith(_CHANGED[0]):
            return self._opening  # as the gateway has sent it
        _, _, raw = data.partition(_DATA)
        try:
            event = _members(raw)
            response = _members(event["response"])
            incomplete = bytes(response["status"]) == _INCOMPLETE
        except (ValueError, LookupError):
            return data
        if not incomplete and not self._fields:
            return data
        if incomplete:  # as OpenAI; vLLM ends every response with `response.completed`
            event["type"] = msgspec.Raw(b'"response.incomplete"')
        name = bytes(event["type"]).strip(b'"')
        made = _encode(event | {"response": response | self._fields})
        return b"event: %b\ndata: %b\n\n" % (name, made)

    def whole(self, body: bytes) -> bytes:
        """The response."""
        if not self._fields:
            return body
        try:
            response = _members(body)
        except ValueError:
            return body
        if bytes(response.get("object", b"")) != b'"response"':
            return body
        return _encode(response | self._fields)


AnswerEdit = TierEdit | ResponseEdit
