"""Headers that a client may send with a request that creates work."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from shared.api.errors import BadRequest

_IDEMPOTENCY_KEY, _ON_DISCONNECT = b"idempotency-key", b"x-flotilla-on-disconnect"
_NAMES = frozenset({_IDEMPOTENCY_KEY, _ON_DISCONNECT})
_VISIBLE = re.compile(rb"[!-~]{1,255}")


class CallHeaders(NamedTuple):
    """Empty: the client did not send it."""

    idempotency_key: str = ""
    on_disconnect: str = ""


_NONE = CallHeaders()


def call_headers(headers: Iterable[tuple[bytes, bytes]]) -> CallHeaders:
    """Those of a request. Raises BadRequest for an invalid key, or a header that is there twice."""
    found = [each for each in headers if each[0] in _NAMES]
    if not found:
        return _NONE
    values = dict(found)
    if len(values) < len(found):
        raise BadRequest(f"The header `{found[0][0].decode()}` is there twice.")
    key = values.get(_IDEMPOTENCY_KEY)
    if key is not None and not _VISIBLE.fullmatch(key):
        raise BadRequest("`Idempotency-Key` must have 1 to 255 visible ASCII characters.")
    return CallHeaders((key or b"").decode(), values.get(_ON_DISCONNECT, b"").decode("latin-1"))
