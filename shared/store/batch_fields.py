"""The fields of a batch's record in Redis."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from shared.batches.batch import Batch, BatchStatus, LineError, Usage
from shared.storage import Segment
from shared.webhooks.webhook_delivery import notify_of


def fields_of(batch: Batch) -> dict[str, str | float]:
    """Those of a new batch."""
    return {
        "tenant": batch.tenant,
        "endpoint": batch.endpoint,
        "input_file_id": batch.input_file_id,
        "window_s": batch.window_s,
        "completion_window": batch.completion_window,
        "metadata": "" if batch.metadata is None else json.dumps(dict(batch.metadata)),
        "output_ttl_s": batch.output_ttl_s or "",
        "created_at": batch.created_at,
        "status": batch.status,
        "notify": notify_of("batch", batch.webhooks),
        "key": batch.key,
    }


def parse_segment(packed: bytes) -> Segment:
    """A segment of its output or errors."""
    size, _, blob = packed.decode().partition(" ")
    return Segment(blob, int(size))


def pack_errors(errors: Sequence[LineError]) -> str:
    """The field `errors` of a batch."""
    return json.dumps(errors)


def parse_batch(batch_id: str, raw: Mapping[bytes, bytes]) -> Batch | None:
    """A Batch from its record; None if there is none."""
    if b"tenant" not in raw:
        return None
    text = {name.decode(): value.decode() for name, value in raw.items()}
    return Batch(
        id=batch_id,
        tenant=text["tenant"],
        endpoint=text["endpoint"],
        input_file_id=text["input_file_id"],
        window_s=float(text["window_s"]),
        completion_window=text["completion_window"],
        metadata=json.loads(text["metadata"]) if text["metadata"] else None,
        output_ttl_s=float(text["output_ttl_s"]) if text["output_ttl_s"] else None,
        created_at=float(text["created_at"]),
        status=BatchStatus(text["status"]),
        times={
            name.removeprefix("at:"): int(value) / 1e6
            for name, value in text.items()
            if name.startswith("at:")
        },
        total=int(text.get("total", 0)),
        completed=int(text.get("completed", 0)),
        failed=int(text.get("failed", 0)),
        usage=Usage(*(int(text.get(name, 0)) for name in Usage._fields)),
        errors=tuple(LineError(*each) for each in json.loads(text.get("errors") or "[]")),
        model=text.get("model", ""),
        output_file_id=text.get("output_file_id", ""),
        error_file_id=text.get("error_file_id", ""),
        key=text.get("key", ""),
    )
