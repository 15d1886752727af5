"""A collector of spans, which processes send to it as OTLP over HTTP."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collected(NamedTuple):
    """One span."""

    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]


class Collector:
    """The server, with the spans that have come so far."""

    def __init__(self) -> None:
        self.spans: list[Collected] = []
        spans = self.spans

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

    def of(self, trace: str) -> list[Collected]:
        """The spans of one trace."""
        return [span for span in self.spans if span.trace == trace]


def _spans(body: bytes) -> list[Collected]:
    return [
        Collected(
            span.name,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            {
                pair.key: getattr(pair.value, pair.value.WhichOneof("value"))
                for pair in span.attributes
            },
        )
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
