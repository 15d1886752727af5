"""`flotilla webhook` against a gateway of canned answers."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from gateway.cli import completion
from tests.unit.gateway.cli.conftest import Flotilla
from tests.unit.gateway.cli.stub import StubGateway, error

PATH = "/v1/webhook_endpoints"
TYPES = {"object": "list", "data": ["batch.completed", "job.completed"]}
ENDPOINT = {
    "id": "we_1",
    "object": "webhook_endpoint",
    "name": "ci",
    "url": "https://example.com/hook",
    "event_types": ["job.completed", "job.failed"],
    "created_at": 1_790_000_000,
    "updated_at": 1_790_000_000,
    "signing_secret_hint": "whsec_...abcd",
    "disabled": None,
}
WITH_SECRET = ENDPOINT | {"signing_secret": "whsec_secret"}


def delivery(**changes: Any) -> dict[str, Any]:
    return {
        "id": "wh_1",
        "object": "webhook_delivery",
        "webhook_endpoint_id": "we_1",
        "event_id": "evt_1",
        "event_type": "job.completed",
        "subject": "job_1",
        "created_at": time.time() - 90,
        "state": "delivered",
        "tries": [{"at": 1_790_000_000.0, "status_code": 204, "error": None, "duration_ms": 1200}],
        "next_try_at": None,
    } | changes


def test_create_prints_the_secret_once(flotilla: Flotilla, stub: StubGateway) -> None:
    stub.answers[f"POST {PATH}"] = WITH_SECRET
    stub.answers["GET /v1/webhook_event_types"] = TYPES
    url = "https://example.com/hook"
    assert flotilla("webhook", "create", url).stdout == "we_1\nwhsec_secret\n"
    named = ("--name", "ci", "--event", "job.failed", "--event", "batch.completed")
    made = json.loads(flotilla("webhook", "create", url, *named, "--json").stdout)
    assert made["signing_secret"] == "whsec_secret"
    assert [body for call, body in stub.sent() if call.startswith("POST")] == [
        {"name": "example.com", "url": url, "event_types": TYPES["data"]},
        {"name": "ci", "url": url, "event_types": ["job.failed", "batch.completed"]},
    ]


@pytest.mark.parametrize(("status", "code"), [(204, 0), (301, 1), (500, 1)])
def test_test(flotilla: Flotilla, stub: StubGateway, status: int, code: int) -> None:
    answer = {"event_type": "batch.failed", "status_code": status, "success": True}
    stub.answers[f"POST {PATH}/we_1/test"] = answer
    result = flotilla("webhook", "test", "we_1", "--event", "batch.failed")
    assert result.exit_code == code
    assert result.stdout == f"batch.failed: answered {status}\n"
    assert stub.requests[-1].body == {"event_type": "batch.failed"}


def test_resend_rotate_and_rm(flotilla: Flotilla, stub: StubGateway) -> None:
    stub.answers |= {
        f"POST {PATH}/we_1/deliveries/wh_1/resend": delivery(state="pending"),
        f"POST {PATH}/we_1/deliveries/wh_2/resend": error("There is no delivery.", 404),
        f"POST {PATH}/we_1/rotate_secret": WITH_SECRET,
        f"DELETE {PATH}/we_1": {"id": "we_1", "deleted": True},
    }
    assert flotilla("webhook", "resend", "we_1", "wh_1").stdout == "wh_1: pending\n"
    assert flotilla("webhook", "resend", "we_1", "wh_2").exit_code == 3
    assert flotilla("webhook", "rotate", "we_1").stdout == "we_1\nwhsec_secret\n"
    flotilla("webhook", "rotate", "we_1", "--keep-old")
    kept = [body["keep_old_secret_active_for_24_hours"] for _, body in stub.sent()[-2:]]
    assert kept == [False, True]
    assert flotilla("webhook", "rm", "we_1").stdout == "we_1: deleted\n"


def test_what_the_shell_proposes(flotilla: Flotilla, stub: StubGateway) -> None:
    stub.answers |= {
        f"GET {PATH}": {"data": [ENDPOINT]},
        "GET /v1/webhook_event_types": TYPES,
    }
    assert completion.webhook_ids("we_") == ["we_1"]
    assert completion.event_types("job.") == ["job.completed"]
    assert completion.webhook_ids("x") == []
