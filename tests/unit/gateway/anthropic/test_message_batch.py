"""A batch and its results in Anthropic's form."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from anthropic.types.messages import MessageBatch as SdkBatch

from gateway.apis.anthropic.message_batch import KEPT_S, MessageBatch
from gateway.apis.anthropic.message_results import result, results
from gateway.batches.line_result import CANCELLED, EXPIRED, answered, given_up, refused
from shared.batches.batch import Batch, BatchStatus, new_message_batch_id
from shared.job.errors import ModelNotFound

NEW = Batch(
    id=new_message_batch_id(),
    tenant="team",
    endpoint="/v1/messages",
    input_file_id="file-1",
    window_s=86_400.0,
    completion_window="24h",
    metadata=None,
    output_ttl_s=None,
    created_at=1000.75,
    status=BatchStatus.IN_PROGRESS,
    times={BatchStatus.IN_PROGRESS: 1000.75},
    total=10,
)


def shown(batch: Batch, now_s: float = 2000.0) -> dict[str, Any]:
    found: dict[str, Any] = MessageBatch.of(batch, now_s).model_dump(mode="json")
    SdkBatch.model_validate(found)
    assert found.keys() == SdkBatch.model_fields.keys()
    assert sum(found["request_counts"].values()) == batch.total
    return found


def test_a_batch_that_runs() -> None:
    found = shown(NEW._replace(completed=3, failed=2))
    assert (found["processing_status"], found["request_counts"]["processing"]) == (
        "in_progress",
        10,
    )
    assert found["created_at"] == "1970-01-01T00:16:40.750000Z"
    assert found["expires_at"] == "1970-01-02T00:16:40.750000Z"
    empty = {name for name, value in found.items() if value is None}
    assert empty == {"ended_at", "cancel_initiated_at", "archived_at", "results_url"}
    canceling = {"status": BatchStatus.CANCELLING, "times": {BatchStatus.CANCELLING: 1500.0}}
    found = shown(NEW._replace(**canceling))
    assert found["processing_status"] == "canceling"
    assert found["cancel_initiated_at"] == "1970-01-01T00:25:00Z"


@pytest.mark.parametrize(
    ("status", "cut_off", "counts"),
    [
        (BatchStatus.COMPLETED, {}, {"succeeded": 7, "errored": 3}),
        (BatchStatus.CANCELLED, {"cancelled": 2}, {"succeeded": 7, "errored": 1, "canceled": 2}),
        (BatchStatus.EXPIRED, {"expired": 3}, {"succeeded": 7, "expired": 3}),
        # Its input was lost before all had a result.
        (BatchStatus.FAILED, {"failed": 0}, {"succeeded": 7, "errored": 3}),
    ],
)
def test_a_batch_that_has_ended(
    status: BatchStatus, cut_off: dict[str, int], counts: dict[str, int]
) -> None:
    values = {"completed": 7, "failed": 3} | cut_off
    ended = NEW._replace(status=status, times={status: 1600.0}, **values)
    found = shown(ended)
    assert found["processing_status"] == "ended"
    assert {name: n for name, n in found["request_counts"].items() if n} == counts
    assert found["ended_at"] == "1970-01-01T00:26:40Z"
    assert found["results_url"] == f"/v1/messages/batches/{NEW.id}/results"
    found = shown(ended, 1000.75 + KEPT_S)
    assert (found["results_url"], found["archived_at"]) == (None, "1970-01-30T00:16:40.750000Z")


MESSAGE = b'{"id": "msg_1", "content": [{"text": "a\\u2028\\n\xc3\xa9"}], "stop": null}'
LINES = [
    answered(1, "a", "job_1", 200, MESSAGE),
    refused(2, "b", "job_2", "/v1/messages", ModelNotFound("There is none.")),
    answered(3, "c", "job_3", 400, b'{"type": "error", "error": {"type": "x", "message": "m"}}'),
    given_up(4, "d", "job_4", *CANCELLED),
    given_up(5, "e", "job_5", *EXPIRED),
    given_up(6, "f", "job_6", "worker_lost", "It was lost."),
]


def test_lines_of_the_output_are_results() -> None:
    found = {}
    for each in LINES:
        line = json.loads(result(each.data.removesuffix(b"\n")))
        found[line["custom_id"]] = line["result"]
    error = {"type": "not_found_error", "message": "There is none.", "code": "model_not_found"}
    lost = {"type": "api_error", "message": "It was lost.", "code": "worker_lost"}
    assert found == {
        "a": {"type": "succeeded", "message": json.loads(MESSAGE)},
        "b": {
            "type": "errored",
            "error": {"type": "error", "error": error, "request_id": "job_2"},
        },
        "c": {
            "type": "errored",
            "error": {
                "type": "error",
                "error": {"type": "x", "message": "m"},
                "request_id": "job_3",
            },
        },
        "d": {"type": "canceled"},
        "e": {"type": "expired"},
        "f": {"type": "errored", "error": {"type": "error", "error": lost, "request_id": None}},
    }


async def test_chunks_may_end_within_a_line() -> None:
    data = b"".join(each.data for each in LINES)

    async def chunks(size: int) -> AsyncIterator[bytes]:
        for at in range(0, len(data), size):
            yield data[at : at + size]

    whole = b"".join([part async for part in results(chunks(len(data)))])
    assert whole.count(b"\n") == len(LINES)
    for size in (1, 7, 100):
        assert b"".join([part async for part in results(chunks(size))]) == whole
