"""What a client asks for a job in the headers of its request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gateway.http.wrong_fields import sent
from shared.job.errors import BadRequest

_IDEMPOTENCY_KEY, _ON_DISCONNECT = b"idempotency-key", b"x-flotilla-on-disconnect"
_QUEUE_DEADLINE, _RUN_DEADLINE = b"x-flotilla-queue-deadline", b"x-flotilla-run-deadline"
_MODEL_VERSION, _MAX_WAIT = b"x-flotilla-model-version", b"x-flotilla-max-wait"
_NAMES = frozenset(
    {
        _IDEMPOTENCY_KEY,
        _ON_DISCONNECT,
        _QUEUE_DEADLINE,
        _RUN_DEADLINE,
        _MODEL_VERSION,
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
    max_wait_s: float | None = None


_NO_HEADERS = CallHeaders()


def call_headers(headers: Iterable[tuple[bytes, bytes]]) -> CallHeaders:
    """Those of a request. Raises BadRequest for an invalid one, or one that is there twice."""
    found = [each for each in headers if each[0] in _NAMES]
    if not found:
        return _NO_HEADERS
    values = dict(found)
    if len(values) < len(found):
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
        _seconds(values, _MAX_WAIT),
    )


def _repeated(found: list[tuple[bytes, bytes]]) -> str:
    names = [name for name, _ in found]
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
