"""A fleet with two Redis servers: one is killed and comes back while clients read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from shared.job.job import shard_in
from tests.e2e.processes import Process, Stack
from tests.e2e.test_lost_workers import Call, job, request
from tests.redis_server import RedisServer
from tests.waiting import wait_for

AWAY = 1
TOKENS = 600
SLOW = {"sim_step_ms": 10, "sim_step_us_per_seq": 0}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[RedisServer]]:
    servers = []
    for name in "01":
        (tmp_path / name).mkdir()
        servers.append(RedisServer(tmp_path / name))
        servers[-1].start()
    yield servers
    for server in servers:
        server.stop()


def streamed(gateway: Process, n: int) -> list[Call]:
    """Streams that have begun, some on each server."""
    calls = [
        Call(gateway, request(f"stream {i}", max_tokens=TOKENS, ignore_eos=True, stream=True))
        for i in range(n)
    ]
    wait_for(lambda: all(len(call.lines) > 20 for call in calls), "all stream")
    return calls


def place(call: Call) -> int:
    assert call.headers is not None
    return shard_in(call.headers["x-flotilla-job-id"]) % 2


def test_one_server_is_killed_and_back(servers: list[RedisServer], tmp_path: Path) -> None:
    urls = [server.url for server in servers]
    # A lease that is longer than the server is away: its jobs only pause.
    shared = {"shards": 2, "shard_redis_urls": ",".join(urls), "lease_s": 60.0}
    stack = Stack(urls[0], tmp_path)
    try:
        gateway = stack.gateway(**shared)
        stack.worker(**SLOW, **shared)
        calls = streamed(gateway, 12)
        assert {place(call) for call in calls} == {0, 1}

        servers[AWAY].stop(kill=True)
        for call in calls:
            if place(call) != AWAY:
                call.join(30)
                assert call.lines[-1] == "data: [DONE]"
        # New jobs go where they can be taken.
        wait_for(lambda: httpx.get(f"{gateway.url}/readyz").status_code == 200, "it is ready")
        fresh = [
            httpx.post(f"{gateway.url}/v1/chat/completions", json=request(f"n {i}", max_tokens=2))
            for i in range(20)
        ]
        assert [answer.status_code for answer in fresh] == [200] * len(fresh)
        assert all(shard_in(a.headers["x-flotilla-job-id"]) % 2 != AWAY for a in fresh)

        away = next(call for call in calls if place(call) == AWAY)
        assert away.headers is not None
        refused = httpx.get(f"{gateway.url}/jobs/{away.headers['x-flotilla-job-id']}")
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "redis_unavailable"

        servers[AWAY].start()
        for call in calls:
            call.join(60)
            assert call.lines[-1] == "data: [DONE]", call.lines[-3:]
            assert call.headers is not None
            done = job(gateway, call.headers["x-flotilla-job-id"])
            assert done["state"] == "completed"
            assert done["usage"]["completion_tokens"] == TOKENS
            assert done["text"] == call.text, "nothing is lost, nothing is said twice"
            assert len(done["attempts"]) == 1
        assert gateway.metric("flotilla_redis_uptime_seconds", server="0") > 0

        def there_again() -> bool:
            listed = httpx.get(f"{gateway.url}/jobs", params={"limit": 100})
            return listed.status_code == 200 and len(listed.json()["data"]) >= len(calls)

        wait_for(there_again, "jobs of both are listed")
    finally:
        stack.close()
