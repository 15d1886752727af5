"""OpenTelemetry's spans in a file: OTLP as JSON, one request a line, as a collector writes it."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_IDS = frozenset({"traceId", "spanId", "parentSpanId"})


def exporter(path: Path) -> Any:
    """A span exporter that appends to the file; several processes may write to one."""
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class FileExporter(SpanExporter):  # type: ignore[misc]
        def export(self, spans: Sequence[Any]) -> Any:
            request = MessageToDict(encode_spans(spans), use_integers_for_enums=True)
            with path.open("ab", buffering=0) as file:
                file.write(json.dumps(_with_hex_ids(request)).encode() + b"\n")
            return SpanExportResult.SUCCESS

    return FileExporter()


def _with_hex_ids(value: Any) -> Any:
    """OTLP as JSON has ids in hex, where protobuf's JSON has base64."""
    if isinstance(value, list):
        return [_with_hex_ids(each) for each in value]
    if isinstance(value, dict):
        return {
            key: base64.b64decode(each).hex() if key in _IDS else _with_hex_ids(each)
            for key, each in value.items()
        }
    return value
