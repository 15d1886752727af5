"""What operators see while nobody delivers events, and when they are delivered again."""

from __future__ import annotations

import httpx

from shared.job.record import pack
from shared.store import keys
from shared.tenants.tenant import DEFAULT_TENANT
from tests.api.test_doctor import states
from tests.harness.fleet import Stack
from tests.harness.servers import RedisServer
from tests.harness.waiting import eventually
from tests.harness.webhooks import ALLOW, client_of, subscribed

BODY = {"model": "simulated", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}


async def test_events_without_maintenance(stack: Stack, redis_server: RedisServer) -> None:
    stack.worker(sim_step_ms=2, sim_step_us_per_seq=0)
    gateway = stack.gateway(**ALLOW)
    assert states(gateway)["webhooks"] == "ok"
    assert gateway.metric("flotilla_webhook_events") == 0
    async with client_of(gateway) as client, subscribed(client) as there:
        with redis_server.client() as redis:  # an hour ago a job has ended
            words = (
                f"job_{'0' * 27}", DEFAULT_TENANT, "", "m", "completed", "job", "", 1, 0, 1, 0, 0, 0
            )  # fmt: skip
            entry = f"{(redis.time()[0] - 3600) * 1000}-0"
            redis.xadd(keys.of("ended", 0), {"e": pack(words)}, entry)
        async with httpx.AsyncClient(base_url=gateway.url) as http:
            (await http.post("/jobs", json={"body": BODY})).raise_for_status()

            async def waits() -> bool:
                return gateway.metric("flotilla_webhook_events") == 2

            await eventually(waits, "both events wait")
        assert gateway.metric("flotilla_webhook_events_oldest_age_seconds") >= 3600
        assert states(gateway)["webhooks_late"] == "problem"
        stack.maintenance(**ALLOW)
        await there.events(2)

        async def is_noted() -> bool:
            return gateway.metric("flotilla_webhook_deliveries", outcome="delivered") == 2

        await eventually(is_noted, "it is noted")
        assert gateway.metric("flotilla_webhook_endpoints_behind") == 0
        assert states(gateway)["webhooks"] == "ok"
