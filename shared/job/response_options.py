"""What a client asked of a response that not vLLM does, but the gateway and the job store.

It is the member `flotilla.response` of the body that the job keeps, its first one, so that it can
be read without the rest. vLLM ignores it.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

_PREFIX = b'{"flotilla":{"response":'
_SUFFIX = b"},"
INPUT = b', "input": '
"""Between the other members of a body and its input, which is the last one."""
_MOST_BYTES = 2048
"""The ids in it are short: the gateway has checked them."""


class ResponseOptions(NamedTuple):
    """The options of one response."""

    background: bool = False
    store: bool = True
    previous_response_id: str = ""
    conversation: str = ""
    """The conversation's id; empty: none."""
    created_at: int = 0
    """Unix seconds, of a response in the background; 0: vLLM sets it."""
    n_items: int = 0
    """How many items the input has; a text is one."""
    previous_head_bytes: int = 0
    """The bytes before the input in the body of the response that this one continues; 0: none."""
    fields_bytes: int = 0
    """How many bytes of the body are the members between these options and the input."""

    def prefix(self) -> bytes:
        """The beginning of a body with these options: an object whose other members follow."""
        options = json.dumps(self._asdict(), separators=(",", ":")).encode()
        return _PREFIX + options + _SUFFIX

    @property
    def head_bytes(self) -> int:
        """How many bytes of the body are before its input."""
        return len(self.prefix()) + self.fields_bytes

    def input_of(self, body: bytes) -> bytes:
        """The input as JSON: a list, a text, or what vLLM refuses; empty if there is none.

        `body` has these options.
        """
        return body[self.head_bytes :].removeprefix(INPUT).removesuffix(b"}")

    def request_fields(self, body: bytes) -> dict[str, Any]:
        """The request's fields without the input, which may be large. `body` has these options."""
        start = len(self.prefix())
        try:
            fields = json.loads(b"{%b}" % body[start : start + self.fields_bytes])
        except ValueError:
            return {}
        return fields if isinstance(fields, dict) else {}

    def shown(self) -> dict[str, Any]:
        """The fields of the response that they set."""
        fields: dict[str, Any] = {}
        if self.background:
            fields["background"] = True
        if self.created_at:
            fields["created_at"] = self.created_at
        if self.previous_response_id:
            fields["previous_response_id"] = self.previous_response_id
        if self.conversation:
            fields["conversation"] = {"id": self.conversation}
        return fields

    @classmethod
    def of_body(cls, body: bytes) -> ResponseOptions:
        """The options in a job's body; the defaults if it has none."""
        if not body.startswith(_PREFIX):
            return cls()
        text = body[len(_PREFIX) : _MOST_BYTES].decode(errors="replace")
        try:
            options, _ = json.JSONDecoder().raw_decode(text)
            return cls(**options)
        except (ValueError, TypeError):
            return cls()
