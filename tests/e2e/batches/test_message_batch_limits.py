"""A batch of messages does not go on in place of a key whose budget is spent."""

from __future__ import annotations

import httpx

from tests.harness.client import CHAT, chat, http
from tests.harness.fleet import Stack
from tests.harness.keys import MANAGED_KEYS, OPERATOR, bearer
from tests.harness.waiting import wait_for


def test_a_spent_budget_refuses_a_batch_of_messages(stack: Stack) -> None:
    stack.worker(sim_step_ms=1, sim_step_us_per_seq=0)
    gateway = stack.gateway(**MANAGED_KEYS, storage_url=str(stack.folder / "files"))
    stack.maintenance(storage_url=str(stack.folder / "files"))
    key = {"tenant": "t", "limits": {"tokens_per_day": 20}}
    made = http.post(f"{gateway.url}/admin/keys", headers=OPERATOR, json=key).json()
    with httpx.Client(base_url=gateway.url, headers=bearer(made["secret"]), timeout=60) as client:
        body = chat(max_tokens=10)
        wait_for(lambda: client.post(CHAT, json=body).status_code == 429, "the budget is spent")
        message = {"custom_id": "1", "params": body}
        refused = client.post("/v1/messages/batches", json={"requests": [message]})
        assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
