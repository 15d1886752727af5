"""The body of `POST /v1/responses`: the fields for the gateway, and those for vLLM. Pure.

vLLM gets a response that is not stored, does not run in the background and has no predecessor: the
items of the history are at the beginning of its input.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.apis.responses.response_items import (
    History,
    as_items,
    found_reference,
    is_reference,
    no_such_item,
    pack_item,
    references_in,
    stored_item,
    without_empty,
)
from gateway.http.wrong_fields import sent
from shared.job.errors import BadRequest
from shared.job.responses import INPUT, ResponseOptions, StoredItem

_NOT_FOR_THE_ENGINE = frozenset(
    {"background", "conversation", "input", "previous_response_id", "request_id"}
    | {"store", "stream_options"}
)
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


class ResponseRequest(NamedTuple):
    """The parts of a body; the input itself only if a history precedes it."""

    options: ResponseOptions
    fields: bytes
    """The members for vLLM but for the input, as JSON without braces."""
    input: Any
    body: bytes
    """The body for the job; empty if a history has to be put into it."""

    @property
    def conversation(self) -> str:
        """The conversation that it continues; empty: none."""
        return self.options.conversation

    @property
    def background(self) -> bool:
        """It is answered at once and made in the background."""
        return self.options.background

    @property
    def has_history(self) -> bool:
        """The input continues a conversation or another response."""
        return bool(self.options.previous_response_id or self.options.conversation)

    @property
    def references(self) -> frozenset[str]:
        """The ids of the items of the history that the input refers to. Raises BadRequest."""
        return references_in(as_items(self.input))

    def behind(
        self,
        history: History,
        referred: Mapping[str, bytes],
        owner: str,
        max_items: int,
        previous_head_bytes: int = 0,
    ) -> Joined:
        """The body for the job `owner`, whose input is behind that history.

        `referred`: the items that `references` names, as far as the history has them. Raises
        BadRequest.
        """
        items = without_empty(as_items(self.input))
        total = history.n_items + len(items)
        if total > max_items:
            raise BadRequest(
                f"The conversation has {total} items with this input; "
                f"at most {max_items} are allowed.",
                "input",
            )
        sent, own = [], []
        for number, item in enumerate(items, history.n_items):
            if is_reference(item):
                sent.append(found_reference(item, referred))
            else:
                sent.append(pack_item(item))
                own.append(stored_item(item, owner, number))
        options = self.options._replace(n_items=total, previous_head_bytes=previous_head_bytes)
        text = b",".join([*history.parts, *sent])
        body = b"".join([options.prefix(), self.fields, INPUT, b"[", text, b"]}"])
        return Joined(body, tuple(own), options.head_bytes)


class Joined(NamedTuple):
    """The body of a response that continues something."""

    body: bytes
    own: tuple[StoredItem, ...]
    """Its own items, without those that it refers to."""
    head_bytes: int
    """Bytes of the body before the input."""


def response_request(fields: Mapping[str, Any]) -> ResponseRequest:
    """The parts of a body that was parsed. Raises BadRequest."""
    background, store = _flag(fields, "background", False), _flag(fields, "store", True)
    kept = background and store  # vLLM refuses the other kind
    options = ResponseOptions(
        background=kept,
        store=store,
        previous_response_id=_id(fields, "previous_response_id"),
        conversation=_conversation(fields),
        created_at=int(time.time()) if kept else 0,
    )
    if options.previous_response_id:
        for other in ("conversation", "previous_input_messages"):
            if fields.get(other):
                raise BadRequest(
                    f"Only one of `{other}` and `previous_response_id` can be set.",
                    "previous_response_id",
                )
    engine_fields = {
        name: value for name, value in fields.items() if name not in _NOT_FOR_THE_ENGINE
    }
    if background and not store:
        engine_fields["background"] = True
    # Not stored by vLLM: the job is the stored response.
    members = json.dumps(engine_fields | {"store": False}, ensure_ascii=False)[1:-1].encode()
    options = options._replace(fields_bytes=len(members))
    request = ResponseRequest(options, members, fields.get("input"), b"")
    if request.has_history:
        return request
    given = request.input
    if given is None:  # vLLM answers with the error
        return request._replace(body=options.prefix() + members + b"}")
    if isinstance(given, list) and all(isinstance(item, dict) for item in given):
        given = without_empty(given)
        for missing in references_in(given):
            raise no_such_item(missing)
    options = options._replace(n_items=len(given) if isinstance(given, list) else 1)
    text = json.dumps(given, ensure_ascii=False).encode()
    body = options.prefix() + members + INPUT + text + b"}"
    return request._replace(input=None, options=options, body=body)


def _flag(fields: Mapping[str, Any], name: str, default: bool) -> bool:
    value = fields.get(name)
    if not isinstance(value, bool | None):
        raise BadRequest(f"`{name}` must be true or false, not {sent(value)}.", name)
    return default if value is None else value


def _id(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise BadRequest(f"`{name}` must be the id of a stored object, not {sent(value)}.", name)
    return value


def _conversation(fields: Mapping[str, Any]) -> str:
    """The id of the conversation, which is sent as a text or as an object with an `id`."""
    value = fields.get("conversation")
    if isinstance(value, Mapping):
        return _id({"conversation": value.get("id", "")}, "conversation")
    return _id(fields, "conversation")
