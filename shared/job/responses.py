"""Responses and conversations (OpenAI's APIs): ids, and what the gateway and the store have to know
of a response.

A response is a job: its id has the job's digits. A conversation lies in a shard, as the jobs of its
responses do.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from shared.job.job import shard_of
from shared.job.record import pack

CONVERSATION_PREFIX = "conv_"
_CONVERSATION = re.compile(r"conv_([0-9a-f]{3})[0-9a-f]{32}")
_RESPONSE, _JOB = "resp_", "job_"
_PREFIX = b'{"flotilla":{"response":'
_SUFFIX = b"},"
INPUT = b', "input": '
"""Between the other members of a body and its input, which is the last one."""
_MOST_OPTION_BYTES = 2048
"""The ids in it are short: the gateway has checked them."""
_ECHOED: dict[str, Any] = {
    "instructions": None,
    "metadata": None,
    "parallel_tool_calls": True,
    "temperature": None,
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "reasoning": None,
    "service_tier": "auto",
    "text": None,
    "top_logprobs": None,
    "truncation": "disabled",
    "user": None,
}
"""Fields of the request that the response repeats, with their defaults."""


# --- ids ---


def response_id(job_id: str) -> str:
    """The id of the response that this job is."""
    return _RESPONSE + job_id.removeprefix(_JOB)


def job_id_of(response: str) -> str | None:
    """The id of the job that is this response; None if it is no response's id."""
    if not response.startswith(_RESPONSE):
        return None
    job_id = _JOB + response.removeprefix(_RESPONSE)
    return None if shard_of(job_id) is None else job_id


def new_conversation_id(shard: int) -> str:
    """`conv_`, three hex digits that name the shard, 128 random bits."""
    return f"{CONVERSATION_PREFIX}{shard:03x}{os.urandom(16).hex()}"


def shard_of_conversation(conversation: str) -> int | None:
    """The shard that holds the conversation; None if it is no conversation's id."""
    match = _CONVERSATION.fullmatch(conversation)
    return int(match[1], 16) if match else None


# --- conversations ---

StoredItem = tuple[str, bytes]
"""The id of an item, and the item with that id as JSON."""


def pack_items(items: Sequence[StoredItem]) -> bytes:
    """As scripts read them: flat id, JSON, ..."""
    return pack([part for item in items for part in item])


class Turn(NamedTuple):
    """What a response is in its conversation, of which one is made at a time."""

    conversation: str
    version: str
    """That of the conversation whose items are in the body: it must not have changed since."""
    items: tuple[StoredItem, ...]
    """Its own input. It becomes a part of the conversation when the response is complete."""
    head_bytes: int
    """The bytes of the job's body before its input: what is left of it then."""
    ttl_s: float
    """How long the conversation is kept from now on."""

    def pack(self) -> tuple[str, str, bytes, int, int]:
        """As submit.lua reads it."""
        packed = pack_items(self.items)
        return self.conversation, self.version, packed, self.head_bytes, int(self.ttl_s * 1000)


# --- options ---


class ResponseOptions(NamedTuple):
    """What a client asked of a response that not vLLM does, but the gateway and the job store.

    It is the member `flotilla.response` of the body that the job keeps, its first one, so that it
    can be read without the rest. vLLM ignores it.
    """

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
        text = body[len(_PREFIX) : _MOST_OPTION_BYTES].decode(errors="replace")
        try:
            options, _ = json.JSONDecoder().raw_decode(text)
            return cls(**options)
        except (ValueError, TypeError):
            return cls()


# --- a response that is not complete ---


def unfinished(job_id: str, body: bytes, status: str) -> dict[str, Any]:
    """The response of a job without an answer yet, or ever. `body`: of the job."""
    options = ResponseOptions.of_body(body)
    request = options.request_fields(body)
    echoed = {
        name: default if request.get(name) is None else request[name]
        for name, default in _ECHOED.items()
    }
    return {
        "id": response_id(job_id),
        "object": "response",
        "created_at": options.created_at,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": request.get("model") or "",
        "output": [],
        "previous_response_id": None,
        "usage": None,
        **echoed,
        **options.shown(),
    }


def opening(job_id: str, body: bytes, created_at: int = 0) -> bytes:
    """The event `response.created`, the first one of a response's stream.

    The gateway sends it of a response in the background at once, and the worker makes the same
    bytes of it, so a client that resumes the stream has the beginning that is in the job's log.
    `created_at`: of one that is not, whose options do not have it.
    """
    response = unfinished(job_id, body, "queued")
    response["created_at"] = response["created_at"] or created_at
    event = {"type": "response.created", "sequence_number": 0, "response": response}
    data = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
    return b"event: response.created\ndata: %b\n\n" % data
