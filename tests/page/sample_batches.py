"""Made-up batches, in the shapes of the API."""

from __future__ import annotations

from typing import Any

from tests.page.overviews import AT, LARGE

RUNNING, FAILED, COMPLETED, CHECKED, CANCELLED = (f"batch_{letter * 24}" for letter in "abcde")


def batch(batch_id: str, status: str, age_s: int = 600, **changes: Any) -> dict[str, Any]:
    """One batch with an age in seconds; it came to its status half of that ago."""
    now = int(AT)
    return {
        "id": batch_id,
        "object": "batch",
        "endpoint": "/v1/chat/completions",
        "model": "qwen3-8b",
        "errors": None,
        "input_file_id": f"file-{'0' * 24}",
        "completion_window": "24h",
        "status": status,
        "output_file_id": None,
        "error_file_id": None,
        "created_at": now - age_s,
        "in_progress_at": now - age_s + 5,
        f"{status}_at": now - age_s // 2,
        "expires_at": now - age_s + 86_400,
        "request_counts": _counts(1000, 812, 3),
        "usage": {"input_tokens": 10, "output_tokens": 24_000, "total_tokens": 24_010},
        "metadata": None,
    } | changes


def _counts(total: int, completed: int, failed: int) -> dict[str, int]:
    return {"total": total, "completed": completed, "failed": failed}


def batches() -> list[dict[str, Any]]:
    """One batch of each kind, newest first."""
    files = {"output_file_id": f"file-{'1' * 24}", "error_file_id": f"file-{'2' * 24}"}
    errors = [
        {"code": "invalid_json_line", "message": "This line is no JSON.", "line": n, "param": None}
        for n in range(3, 10)
    ]
    large = _counts(41 * LARGE, LARGE, LARGE // 9)
    return [
        batch(CHECKED, "validating", 4, model=None, request_counts=_counts(0, 0, 0)),
        batch(RUNNING, "in_progress"),
        batch(f"batch_{'f' * 24}", "in_progress", 500_000, request_counts=large,
              model="meta-llama-3.1-405b-instruct-fp8-dynamic-eu"),
        batch(COMPLETED, "completed", request_counts=_counts(1000, 990, 10), **files),
        batch(FAILED, "failed", errors={"object": "list", "data": errors},
              request_counts=_counts(0, 0, 0)),
        batch(CANCELLED, "cancelled", 90_000, **files),
        batch(f"batch_{'0' * 24}", "cancelling", 90_000),
    ]  # fmt: skip
