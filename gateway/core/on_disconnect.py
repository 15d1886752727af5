"""What happens to a job that no client follows any more: `cancel`, `keep` or `keep_for=<seconds>`.

The header `x-flotilla-on-disconnect` sets it, or `on_disconnect` of POST /jobs.
"""

from __future__ import annotations

import re

from gateway.http.wrong_fields import sent
from shared.job.errors import BadRequest

HEADER = "x-flotilla-on-disconnect"
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
            f"{MAX_KEEP_S} seconds, not {sent(on_disconnect)}.",
            param,
        )
    return float(match[1])
