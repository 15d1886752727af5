"""The access log: one line for each answered request, to find it by its id.

As JSON, one field each; as text:
`2026-11-22T12:01:02.123456Z [info     ] POST /v1/chat/completions 200 [flotilla.access]
seconds=1.204 request_id=req-7 job_id=job_000... tenant=team-a`. `request_id` is the `x-request-id`
of the answer. Keys, query strings and bodies are never in it.

The lines go to stderr: `flotilla up` keeps it in a file, and shows stdout to people. They are
written in batches and without `logging`, which would make a short request a third more expensive.
"""

from __future__ import annotations

import asyncio
import sys
import time
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _quoted
from typing import NamedTuple

from starlette.types import Scope

from shared.job.trace_context import trace_id
from shared.platform import logs, request_span, tracing
from shared.platform.request_span import RequestSpan

CLIENT_LEFT = 499
"""nginx's status code for a request whose client disconnected before the answer."""
_LOGGER = "flotilla.access"
_WRITE_AFTER_S = 0.2
_PATH_BYTES = 200
# Requested every few seconds by monitoring: logged only with FLOTILLA_LOG_LEVEL=debug.
_PROBES = frozenset({"/healthz", "/readyz", "/health", "/ping", "/metrics"})


class _Line(NamedTuple):
    at_s: float
    method: str
    path: bytes
    status: int
    seconds: float
    request_id: bytes
    tenant: str
    job_id: str
    error: str
    trace_id: str


class AccessLog:
    """Keeps lines for a moment and writes them together."""

    def __init__(self, enabled: bool, log_level: str, *, as_json: bool = False) -> None:
        self._enabled = enabled and log_level in {"debug", "info"}
        self._logs_probes = log_level == "debug"
        self._render = _json if as_json else _text
        self._lines: list[_Line] = []

    def record(
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
        """Log an answered request, and write its span if it is traced.

        `began` is the monotonic time in seconds at which it arrived.
        """
        span = request_span.current()
        if span is not None:
            _end_span(span, scope, status, request_id, tenant=tenant, job_id=job_id, error=error)
        if not self._enabled or (scope["path"] in _PROBES and not self._logs_probes):
            return
        if not self._lines:
            asyncio.get_running_loop().call_later(_WRITE_AFTER_S, self.write)
        # Not the scope itself, which would keep all headers in memory.
        path = (scope.get("raw_path") or scope["path"].encode())[:_PATH_BYTES]
        seconds = time.monotonic() - began
        self._lines.append(
            _Line(
                time.time(),
                scope["method"],
                path,
                status,
                seconds,
                request_id,
                tenant,
                job_id,
                error,
                "" if span is None else trace_id(span.ref.traceparent),
            )
        )

    def write(self) -> None:
        """Write all lines now."""
        lines, self._lines = self._lines, []
        sys.stderr.write("".join(map(self._render, lines)))
        sys.stderr.flush()


def _end_span(
    span: RequestSpan,
    scope: Scope,
    status: int,
    request_id: bytes,
    *,
    tenant: str,
    job_id: str,
    error: str,
) -> None:
    ids = {tracing.REQUEST: request_id.decode("ascii")}
    ids |= {tracing.TENANT: tenant} if tenant != "-" else {}
    ids |= {tracing.JOB: job_id} if job_id != "-" else {}
    span.end(scope["method"], scope["path"][:_PATH_BYTES], status, error, ids)


def _text(line: _Line) -> str:
    error = f" error={line.error}" if line.error else ""
    error += f" trace_id={line.trace_id}" if line.trace_id else ""
    return (
        f"{logs.timestamp(line.at_s)} [info     ] {line.method} {_shown(line.path)} {line.status} "
        f"[{_LOGGER}] seconds={line.seconds:.3f} request_id={line.request_id.decode('ascii')} "
        f"job_id={line.job_id} tenant={line.tenant}{error}\n"
    )


def _json(line: _Line) -> str:
    # `json.dumps` of a dict takes several times as long, and there is a line for every request.
    job_id = f', "job_id": {_quoted(line.job_id)}' if line.job_id != "-" else ""
    error = f', "error": {_quoted(line.error)}' if line.error else ""
    error += f', "trace_id": "{line.trace_id}"' if line.trace_id else ""
    common = _common_fields(line.method, line.path, line.status, line.tenant)
    return (
        f'{{"timestamp": "{logs.timestamp(line.at_s)}", {common}, "seconds": {line.seconds:.4f}, '
        f'"request_id": "{line.request_id.decode("ascii")}"{job_id}{error}}}\n'
    )


@lru_cache(maxsize=64)
def _common_fields(method: str, path: bytes, status: int, tenant: str) -> str:
    """The fields that many requests share. Cached: most requests go to a few paths."""
    shown = _shown(path)
    return (
        f'"level": "info", "logger": "{_LOGGER}", '
        f'"message": {_quoted(f"{method} {shown} {status}")}, "method": {_quoted(method)}, '
        f'"path": {_quoted(shown)}, "status": {status}, "tenant": {_quoted(tenant)}'
    )


def _shown(raw_path: bytes) -> str:
    """As the client sent it: percent-encoded, so that it can't look like another field or line."""
    path = raw_path.partition(b"?")[0].decode("latin-1")
    return path.encode("unicode_escape").decode("ascii")
