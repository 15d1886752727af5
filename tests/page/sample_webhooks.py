"""Made-up webhook endpoints and deliveries, in the shapes of the API."""

from __future__ import annotations

from typing import Any

from tests.page.overviews import AT

SEARCH, DISABLED = (f"we_{letter * 24}" for letter in "ab")
DELIVERED, LOST = (f"wh_{letter * 24}" for letter in "cd")


def webhooks() -> list[dict[str, Any]]:
    """One endpoint that gets events, and one that wants no more."""
    return [_endpoint(SEARCH, "search"), _endpoint(DISABLED, "old", "it has answered 410 (Gone)")]


def _endpoint(endpoint_id: str, name: str, disabled: str | None = None) -> dict[str, Any]:
    return {
        "id": endpoint_id,
        "object": "webhook_endpoint",
        "name": name,
        "url": f"https://{name}.example.com/hooks/of-the-fleet-that-is-called-flotilla",
        "event_types": ["batch.completed", "batch.failed", "job.completed", "job.failed"],
        "created_at": int(AT) - 86_400,
        "updated_at": int(AT) - 86_400,
        "signing_secret_hint": "whsec_...abcd",
        "disabled": disabled,
    }


def deliveries(endpoint_id: str) -> list[dict[str, Any]]:
    """One that waits for its next try, and one that has arrived."""
    if endpoint_id == DISABLED:
        return []
    lost = {"at": AT - 5, "status_code": None, "error": "no answer within 15 s",
            "duration_ms": 15_000}  # fmt: skip
    fine = {"at": AT - 60, "status_code": 204, "error": None, "duration_ms": 80}
    return [
        _delivery(LOST, "job.failed", f"job_{'0' * 27}", "pending", [lost, lost], AT + 300),
        _delivery(DELIVERED, "batch.completed", f"batch_{'b' * 24}", "delivered", [fine], None),
    ]


def _delivery(
    webhook_id: str,
    event_type: str,
    subject: str,
    state: str,
    tries: list[dict[str, Any]],
    next_try_at: float | None,
) -> dict[str, Any]:
    return {
        "id": webhook_id,
        "object": "webhook_delivery",
        "webhook_endpoint_id": SEARCH,
        "event_id": f"evt_{'e' * 24}",
        "event_type": event_type,
        "subject": subject,
        "created_at": int(AT) - 60,
        "state": state,
        "tries": tries,
        "next_try_at": next_try_at,
    }
