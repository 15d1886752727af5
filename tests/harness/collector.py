"""A collector of spans, which processes send to it as OTLP over HTTP."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status


class Span(NamedTuple):
    """One span."""

    name: str
    service: str
    trace: str
    id: str
    parent: str
    """Empty: it is the first of its trace."""
    began_ns: int
    ended_ns: int
    failed: bool
    attributes: dict[str, Any]


class Collector:
    """The server, with the spans that have come so far."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        spans = self._spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                spans.extend(_spans(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def spans(self) -> list[Span]:
        """Those that have come, in the order in which they began."""
        return sorted(self._spans, key=lambda span: span.began_ns)

    def of(self, trace: str) -> list[Span]:
        """The spans of one trace."""
        return [span for span in self.spans if span.trace == trace]


def _spans(body: bytes) -> list[Span]:
    return [
        Span(
            name=span.name,
            service=_attributes(resource.resource)["service.name"],
            trace=span.trace_id.hex(),
            id=span.span_id.hex(),
            parent=span.parent_span_id.hex(),
            began_ns=span.start_time_unix_nano,
            ended_ns=span.end_time_unix_nano,
            failed=span.status.code == Status.STATUS_CODE_ERROR,
            attributes=_attributes(span),
        )
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _attributes(of: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in of.attributes}
