"""A collector of spans, which processes send to it as OTLP over HTTP."""

from __future__ import annotations

from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tests.harness.http_stub import Answer, HttpStub, Request


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


class Collector(HttpStub):
    """The server, with the spans that have come so far."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        super().__init__()
        self.url += "/v1/traces"

    def answer(self, request: Request) -> Answer:
        self._spans.extend(_spans(request.body))
        return Answer()

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
