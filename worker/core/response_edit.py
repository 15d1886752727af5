"""A response (OpenAI's Responses API): what vLLM can't set in it, and events that vLLM misnames.

vLLM runs each response as one that is not stored and has no history: the gateway has put the
history into the input. The body's member `flotilla.response` has what the client asked for.
"""

from __future__ import annotations

import msgspec

from shared.job.responses import ResponseOptions, opening, response_id

_CHANGED = tuple(
    f"event: response.{name}\n".encode() for name in ("created", "in_progress", "completed")
)
"""The events that hold the whole response."""
_DATA = b"\ndata: "
_MEMBER = b"{"
_INCOMPLETE = b'"incomplete"'
_encode = msgspec.json.encode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
"""The members of an object, each as JSON that is not parsed, because it may have megabytes."""


def with_response_id(body: bytes, job_id: str) -> bytes:
    """The body of a request with the id that vLLM is to give to the response."""
    if not body.startswith(b'{"'):
        return body
    return b'{"request_id":"%b",%b' % (response_id(job_id).encode(), body.removeprefix(_MEMBER))


class ResponseEdit:
    """See `AnswerEdit`. `tier`: the service tier that serves the request; empty: none is named."""

    __slots__ = ("_fields", "_opening")

    def __init__(self, job_id: str, body: bytes, tier: str) -> None:
        options = ResponseOptions.of_body(body)
        self._fields = options.shown()
        self._opening = opening(job_id, body) if options.background else b""
        if tier:
            self._fields["service_tier"] = tier

    def chunk(self, data: bytes) -> bytes:
        """See `AnswerEdit.chunk`."""
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
        """See `AnswerEdit.whole`."""
        if not self._fields:
            return body
        try:
            response = _members(body)
        except ValueError:
            return body
        if bytes(response.get("object", b"")) != b'"response"':
            return body
        return _encode(response | self._fields)
