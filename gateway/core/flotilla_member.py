"""The member `flotilla` of an endpoint's body: options of the job for which OpenAI has no field.

vLLM ignores that member, so bodies are passed on as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.core.on_disconnect import keep_s
from gateway.http.call_headers import MAX_DEADLINE_S
from shared.job.errors import BadRequest

MEMBER = "flotilla"


class Member(NamedTuple):
    """Its fields. Empty or None: the request does not set it."""

    on_disconnect: str = ""
    max_wait_s: float | None = None


_NONE = Member()


def member_in(fields: Mapping[str, Any]) -> Member:
    """That of a body. Raises BadRequest."""
    member = fields.get(MEMBER)
    if member is None:
        return _NONE
    if not isinstance(member, dict) or not member.keys() <= set(Member._fields):
        known = "` and `".join(Member._fields)
        raise BadRequest(f"`{MEMBER}` must be an object; its fields are `{known}`.", MEMBER)
    on_disconnect, max_wait_s = member.get("on_disconnect"), member.get("max_wait_s")
    if on_disconnect is not None:
        text = on_disconnect if isinstance(on_disconnect, str) else ""
        keep_s(text, f"{MEMBER}.on_disconnect")
    if max_wait_s is not None and not (
        type(max_wait_s) in (int, float) and 0.001 <= max_wait_s <= MAX_DEADLINE_S
    ):
        raise BadRequest(
            f"`{MEMBER}.max_wait_s` must be a number of seconds, from 0.001 to {MAX_DEADLINE_S}.",
            f"{MEMBER}.max_wait_s",
        )
    return Member(on_disconnect or "", max_wait_s)
