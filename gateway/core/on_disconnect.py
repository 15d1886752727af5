"""What happens to a job that no client follows any more: `cancel`, `keep` or `keep_for=<seconds>`.

The header `x-flotilla-on-disconnect` sets it, or the field `on_disconnect` of the member `flotilla`
of a body. vLLM ignores that member, so bodies are passed on as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shared.job.errors import BadRequest

HEADER, MEMBER = "x-flotilla-on-disconnect", "flotilla"
MAX_KEEP_S = 86_400
_KEEP_FOR = re.compile(r"keep_for=([0-9]{1,5}(?:\.[0-9]{1,3})?)s?")


def keep_s(on_disconnect: str, param: str = HEADER) -> float | None:
    """For how many seconds a job is kept without a client; None: to its end. Raises BadRequest."""
    if on_disconnect == "cancel":
        return 0.0
    if on_disconnect == "keep":
        return None
    match = _KEEP_FOR.fullmatch(on_disconnect)
    if match is None or float(match[1]) > MAX_KEEP_S:
        raise BadRequest(
            f"`{param}` must be `cancel`, `keep`, or `keep_for=<seconds>` with at most "
            f"{MAX_KEEP_S} seconds.",
            param,
        )
    return float(match[1])


def on_disconnect_in(fields: Mapping[str, Any]) -> str:
    """`flotilla.on_disconnect` of a body; empty if it is not there. Raises BadRequest."""
    member = fields.get(MEMBER)
    if member is None:
        return ""
    if not isinstance(member, dict) or not member.keys() <= {"on_disconnect"}:
        raise BadRequest(f"`{MEMBER}` must be an object with the field `on_disconnect`.", MEMBER)
    on_disconnect = member.get("on_disconnect")
    if on_disconnect is None:
        return ""
    param = f"{MEMBER}.on_disconnect"
    keep_s(on_disconnect if isinstance(on_disconnect, str) else "", param)
    return str(on_disconnect)
