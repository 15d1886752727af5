"""What a client asks for a job: headers of the request, and the member `flotilla` of its body.

The member has options of the job for which OpenAI has no field. vLLM ignores it, so bodies are
passed on as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gateway.core.on_disconnect import keep_s
from gateway.http.prefer import Prefer, parse_prefer
from gateway.http.wrong_fields import sent
from shared.job.errors import BadRequest

_IDEMPOTENCY_KEY, _ON_DISCONNECT = b"idempotency-key", b"x-flotilla-on-disconnect"
_QUEUE_DEADLINE, _RUN_DEADLINE = b"x-flotilla-queue-deadline", b"x-flotilla-run-deadline"
_MODEL_VERSION, _PREFER = b"x-flotilla-model-version", b"prefer"
_MAX_WAIT = b"x-flotilla-max-wait"
_NAMES = frozenset(
    {
        _IDEMPOTENCY_KEY,
        _ON_DISCONNECT,
        _QUEUE_DEADLINE,
        _RUN_DEADLINE,
        _MODEL_VERSION,
        _PREFER,
        _MAX_WAIT,
    }
)
_SECONDS = re.compile(rb"[0-9]{1,7}(?:\.[0-9]{1,3})?")
MAX_DEADLINE_S = 30 * 86_400
_VISIBLE = re.compile(rb"[!-~]{1,255}")


class CallHeaders(NamedTuple):
    """Empty or None: the client did not send it."""

    idempotency_key: str = ""
    on_disconnect: str = ""
    queue_deadline_s: float | None = None
    run_deadline_s: float | None = None
    model_version: str = ""
    prefer: Prefer | None = None
    max_wait_s: float | None = None


_NO_HEADERS = CallHeaders()


def call_headers(headers: Iterable[tuple[bytes, bytes]]) -> CallHeaders:
    """Those of a request. Raises BadRequest for an invalid one, or one that is there twice."""
    found = [each for each in headers if each[0] in _NAMES]
    if not found:
        return _NO_HEADERS
    values = dict(found)
    preferences = [value for name, value in found if name == _PREFER]
    if len(values) < len(found) - max(0, len(preferences) - 1):  # that header is a list
        raise BadRequest(f"The header `{_repeated(found)}` is there twice.")
    key = values.get(_IDEMPOTENCY_KEY)
    if key is not None and not _VISIBLE.fullmatch(key):
        raise BadRequest("`Idempotency-Key` must have 1 to 255 visible ASCII characters.")
    return CallHeaders(
        (key or b"").decode(),
        values.get(_ON_DISCONNECT, b"").decode("latin-1"),
        _seconds(values, _QUEUE_DEADLINE),
        _seconds(values, _RUN_DEADLINE),
        values.get(_MODEL_VERSION, b"").decode("latin-1"),
        parse_prefer(preferences),
        _seconds(values, _MAX_WAIT),
    )


def _repeated(found: list[tuple[bytes, bytes]]) -> str:
    names = [name for name, _ in found if name != _PREFER]
    return next(name.decode() for name in names if names.count(name) > 1)


def _seconds(values: Mapping[bytes, bytes], header: bytes) -> float | None:
    value = values.get(header)
    if value is None:
        return None
    if not _SECONDS.fullmatch(value) or not 0 < float(value) <= MAX_DEADLINE_S:
        name = header.decode()
        raise BadRequest(
            f"`{name}` must be a number of seconds, above 0 and at most {MAX_DEADLINE_S}, with at "
            f"most three decimals, not {sent(value.decode('latin-1'))}.",
            name,
        )
    return float(value)


MEMBER = "flotilla"


class Member(NamedTuple):
    """The fields of `flotilla`. Empty or None: the request does not set it."""

    on_disconnect: str = ""
    max_wait_s: float | None = None


_NO_MEMBER = Member()


def member_in(fields: Mapping[str, Any]) -> Member:
    """The member of a body. Raises BadRequest."""
    member = fields.get(MEMBER)
    if member is None:
        return _NO_MEMBER
    if not isinstance(member, dict) or not member.keys() <= set(Member._fields):
        known = "` and `".join(Member._fields)
        found = ", ".join(member)[:200] if isinstance(member, dict) else sent(member)
        raise BadRequest(
            f"`{MEMBER}` must be an object, whose fields are `{known}`, not {found}.", MEMBER
        )
    on_disconnect, max_wait_s = member.get("on_disconnect"), member.get("max_wait_s")
    if on_disconnect is not None:
        text = on_disconnect if isinstance(on_disconnect, str) else sent(on_disconnect)
        keep_s(text, f"{MEMBER}.on_disconnect")
    if max_wait_s is not None and not (
        type(max_wait_s) in (int, float) and 0.001 <= max_wait_s <= MAX_DEADLINE_S
    ):
        raise BadRequest(
            f"`{MEMBER}.max_wait_s` must be a number of seconds, from 0.001 to {MAX_DEADLINE_S}, "
            f"not {sent(max_wait_s)}.",
            f"{MEMBER}.max_wait_s",
        )
    return Member(on_disconnect or "", max_wait_s)
