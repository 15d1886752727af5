"""Spans as processes write them to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple


class Span(NamedTuple):
    """One span of a file of OTLP as JSON."""

    name: str
    service: str
    instance: str
    trace: str
    id: str
    parent: str
    """Empty: it is the first of its trace."""
    began_ns: int
    ended_ns: int
    failed: bool
    attributes: dict[str, Any]


def read_spans(path: Path) -> list[Span]:
    """All spans of the file, in the order in which they began; empty if there is no file."""
    if not path.exists():
        return []
    requests = [json.loads(line) for line in path.read_text().splitlines()]
    spans = [
        _span(resource["resource"]["attributes"], span)
        for request in requests
        for resource in request["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    return sorted(spans, key=lambda span: span.began_ns)


def _span(resource: list[dict[str, Any]], span: dict[str, Any]) -> Span:
    process = _attributes(resource)
    return Span(
        name=span["name"],
        service=process["service.name"],
        instance=process["service.instance.id"],
        trace=span["traceId"],
        id=span["spanId"],
        parent=span.get("parentSpanId", ""),
        began_ns=int(span["startTimeUnixNano"]),
        ended_ns=int(span["endTimeUnixNano"]),
        failed=span["status"].get("code") == 2,
        attributes=_attributes(span.get("attributes", [])),
    )


def _attributes(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    found = {}
    for pair in pairs:
        ((kind, value),) = pair["value"].items()
        found[pair["key"]] = int(value) if kind == "intValue" else value
    return found
