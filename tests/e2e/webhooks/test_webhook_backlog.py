"""What operators see while nobody delivers events, and when they are delivered again."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from shared.store.redis.outbox import outbox_key
from shared.tenants.tenant import DEFAULT_TENANT
from tests.e2e.test_storage_route import doctor
from tests.harness.client import http
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer
from tests.harness.waiting import eventually
from tests.harness.webhooks import ALLOW, client_of, subscribed

BODY = {"model": "simulated", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}


def webhooks(gateway: Process) -> dict[str, Any]:
    found: dict[str, Any] = http.get(f"{gateway.url}/admin/webhooks").raise_for_status().json()
    return found


async def test_events_without_maintenance(stack: Stack, redis_server: RedisServer) -> None:
    stack.worker(sim_step_ms=2, sim_step_us_per_seq=0)
    gateway = stack.gateway(**ALLOW)
    assert webhooks(gateway) == {
        "object": "webhooks", "events": 0, "oldest_s": 0, "endpoints": 0, "overdue_s": 0,
        "deliveries": {}, "problems": [],
    }  # fmt: skip
    assert doctor(gateway)["webhooks"] == "ok"
    assert gateway.metric("flotilla_webhook_events") == 0
    async with client_of(gateway) as client, subscribed(client) as there:
        with redis_server.client() as redis:  # an hour ago a job has ended
            at_us = (int(redis.time()[0]) - 3600) * 1_000_000
            ended = (f"job_{'0' * 27}", "completed", str(at_us), "job", DEFAULT_TENANT)
            redis.rpush(outbox_key(0), "\n".join(ended))
        async with httpx.AsyncClient(base_url=gateway.url) as http:
            (await http.post("/jobs", json={"body": BODY})).raise_for_status()

            async def waits() -> bool:
                return gateway.metric("flotilla_webhook_events") == 2

            await eventually(waits, "both events wait")
        assert gateway.metric("flotilla_webhook_events_oldest_age_seconds") >= 3600
        (problem,) = webhooks(gateway)["problems"]
        assert (problem["kind"], problem["level"]) == ("webhooks_late", "problem")
        assert problem["sentence"].startswith("2 events wait for webhooks, the oldest for 60 min")
        assert doctor(gateway)["webhooks_late"] == "problem"
        stack.maintenance(**ALLOW)
        await there.events(2)

        async def is_noted() -> bool:
            return bool(webhooks(gateway)["deliveries"] == {"delivered": 2})

        await eventually(is_noted, "it is noted")
        assert gateway.metric("flotilla_webhook_deliveries", outcome="delivered") == 2
        assert gateway.metric("flotilla_webhook_endpoints_behind") == 0
        assert webhooks(gateway)["problems"] == []


@pytest.mark.parametrize("key", ["team", ""])
def test_the_backlog_is_for_operators(stack: Stack, key: str) -> None:
    gateway = stack.gateway(api_keys="team:team", admin_keys="ops:ops")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    answer = http.get(f"{gateway.url}/admin/webhooks", headers=headers)
    assert answer.status_code == (403 if key else 401)
