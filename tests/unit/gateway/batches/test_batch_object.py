"""A batch as the API shows it."""

from __future__ import annotations

import pytest

from gateway.apis.batches.batch_request import BatchRequest
from shared.job.errors import BadRequest


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
