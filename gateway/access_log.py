"""One line in the log for each request that was answered: how to find what a client asks about.

`POST /v1/chat/completions 200 1.204 s request=req-7 job=job_000... tenant=team-a`: `request` is
the `x-request-id` of the answer. Keys, query strings and bodies are never in it.
"""

from __future__ import annotations

import logging
import time

from starlette.types import Scope

log = logging.getLogger("flotilla.access")

CLIENT_LEFT = 499
"""nginx's word for a request whose client left before there was an answer."""
_PATH_BYTES = 200
# Asked every few seconds by those who watch the gateway: only with FLOTILLA_LOG_LEVEL=debug.
_PROBES = frozenset({"/healthz", "/readyz", "/health", "/ping", "/metrics"})


class AccessLog:
    """Writes the lines, unless they are not wanted."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted

    def note(
        self,
        scope: Scope,
        status: int,
        began: float,
        request_id: bytes,
        *,
        tenant: str = "-",
        job_id: str = "-",
        error: str = "",
    ) -> None:
        """A request has been answered. `began` is of the monotonic clock."""
        if not self._wanted:
            return
        log.log(
            logging.DEBUG if scope["path"] in _PROBES else logging.INFO,
            "%s %s %d %.3f s request=%s job=%s tenant=%s%s",
            scope["method"],
            _path(scope),
            status,
            time.monotonic() - began,
            request_id.decode("ascii"),
            job_id,
            tenant,
            f" error={error}" if error else "",
        )


def _path(scope: Scope) -> str:
    """As the client sent it: percent-encoded, so that it can't look like another field."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.partition(b"?")[0][:_PATH_BYTES].decode("ascii", "backslashreplace")
