"""A batch as the API shows it."""

from __future__ import annotations

import pytest
from openai.types import Batch as OpenAIBatch

from gateway.apis.batches.batch_object import BatchObject
from gateway.apis.batches.batch_request import BatchRequest
from shared.batches.batch import Batch, BatchStatus, LineError, Usage
from shared.job.errors import BadRequest

NEW = Batch(
    id="batch_1",
    tenant="team",
    endpoint="/v1/completions",
    input_file_id="file-1",
    window_s=86_400.0,
    completion_window="24h",
    metadata=None,
    output_ttl_s=None,
    created_at=1000.75,
)


def test_a_new_batch_has_every_field_of_openais() -> None:
    shown = BatchObject.of(NEW).model_dump(mode="json")
    assert shown.keys() == OpenAIBatch.model_fields.keys()
    assert shown["created_at"] == 1000
    assert shown["expires_at"] == 87_400
    assert shown["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    empty = {name for name, value in shown.items() if value is None}
    assert empty == {
        "errors", "metadata", "model", "output_file_id", "error_file_id", "in_progress_at",
        "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at", "cancelled_at",
    }  # fmt: skip


def test_a_batch_at_its_end() -> None:
    ended = NEW._replace(
        status=BatchStatus.COMPLETED,
        times={"in_progress": 1001.2, "finalizing": 1009.0, "completed": 1010.9},
        total=3, completed=2, failed=1, usage=Usage(10, 4, 20, 5), model="m",
        output_file_id="file-2", error_file_id="file-3", metadata={"a": "b"},
        errors=(LineError("invalid_url", "wrong", 7, "url"),),
    )  # fmt: skip
    shown = BatchObject.of(ended).model_dump(mode="json")
    OpenAIBatch.model_validate(shown, strict=True)
    assert (shown["in_progress_at"], shown["completed_at"]) == (1001, 1010)
    assert shown["usage"] == {
        "input_tokens": 10, "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 20, "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": 30,
    }  # fmt: skip
    assert shown["errors"] == {
        "object": "list",
        "data": [{"code": "invalid_url", "message": "wrong", "line": 7, "param": "url"}],
    }


@pytest.mark.parametrize(
    ("window", "seconds"), [("1h", 3600), ("24h", 86_400), ("720h", 2_592_000), ("30d", 2_592_000)]
)
def test_windows(window: str, seconds: float) -> None:
    fields = {"input_file_id": "f", "endpoint": "/v1/embeddings", "completion_window": window}
    assert BatchRequest.of(fields).window_s == seconds


@pytest.mark.parametrize(
    "window", ["", "h", "0h", "01h", "721h", "31d", "60m", "1 h", "-1h", "1.5h"]
)
def test_other_windows(window: str) -> None:
    fields = {"input_file_id": "f", "endpoint": "/v1/embeddings", "completion_window": window}
    with pytest.raises(BadRequest) as refused:
        _ = BatchRequest.of(fields).window_s
    assert refused.value.param == "completion_window"
