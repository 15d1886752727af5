"""What a gateway counts of clients without a key: connections of an address, wrong keys."""

from __future__ import annotations

import time
from pathlib import Path

import httpx

from tests.api.test_front_door import (
    CLOSED,
    HALF,
    KEY,
    WITH_KEY,
    Connect,
    connect,
    gateway,
    is_open,
    stack,
)
from tests.harness.client import http
from tests.harness.fleet import Stack
from tests.harness.processes import metric
from tests.harness.waiting import wait_for

__all__ = ["connect", "gateway", "stack"]


def test_silent_connections_of_an_address_are_limited_and_authenticated_ones_are_not(
    stack: Stack, connect: Connect
) -> None:
    gateway = stack.gateway(
        api_keys=f"alice:{KEY}", header_timeout_s=60, max_waiting_connections=20
    )
    request = f"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n\r\n".encode()
    tenants = [connect(to=gateway) for _ in range(30)]

    def served() -> None:
        for tenant in tenants:
            tenant.sendall(request)
            answer = b""
            while not answer.endswith(b"}"):
                answer += tenant.recv(1 << 16) or b"closed}"
            assert answer.startswith(b"HTTP/1.1 200 ")

    def closed() -> bool:
        served()
        return metric(gateway.url, CLOSED, WITH_KEY, limit="address") >= 20

    served()
    silent = [connect(*sent, to=gateway) for sent in [(), (HALF,)] * 20]
    wait_for(closed, "the oldest are closed")
    assert not any(map(is_open, silent[:20]))
    assert all(map(is_open, silent[20:]))
    assert "127.0.0.1 has 40 silent connections" in gateway.log.read_text()
    served()


def test_at_the_limit_of_descriptors_silent_connections_are_closed_first(
    stack: Stack, connect: Connect, tmp_path: Path
) -> None:
    launcher = ("sh", "-c", 'ulimit -n 256 && exec "$@"', "limited")
    limited = Stack(stack.redis_url, tmp_path, launcher)
    limited.processes = stack.processes  # they end with those
    small = limited.gateway(api_keys=f"alice:{KEY}", header_timeout_s=60)
    limit = int(metric(small.url, "flotilla_connections_limit", WITH_KEY))
    assert 100 < limit < 256
    half_open = [connect(HALF, to=small) for _ in range(300)]
    for _ in range(20):
        assert http.get(f"{small.url}/healthz").status_code == 200
        assert http.get(f"{small.url}/readyz").status_code == 200  # writes to Redis
    assert metric(small.url, "flotilla_connections", WITH_KEY) <= limit
    assert metric(small.url, CLOSED, WITH_KEY, limit="descriptors") >= 300 - limit
    assert not is_open(half_open[0])
    assert is_open(half_open[-1])
    text = small.log.read_text()
    assert 1 <= text.count("file descriptors") <= 3


def test_wrong_keys_are_slowed_down_and_a_valid_one_is_not(stack: Stack) -> None:
    gateway = stack.gateway(api_keys=f"alice:{KEY}", wrong_keys_per_minute=3)
    url = f"{gateway.url}/v1/models"
    with httpx.Client(headers={"authorization": "Bearer sk-guessed"}, timeout=20) as client:
        assert [client.get(url).status_code for _ in range(3)] == [401] * 3
        began = time.monotonic()
        assert client.get(url).status_code == 401
        assert time.monotonic() - began > 0.9
        assert client.post(f"{gateway.url}/v1/completions", json={}).status_code == 401
        assert time.monotonic() - began > 1.8
    assert http.get(url, headers=WITH_KEY).status_code == 200
    assert metric(gateway.url, "flotilla_wrong_keys_total", WITH_KEY, answer="at_once") == 3
    assert metric(gateway.url, "flotilla_wrong_keys_total", WITH_KEY, answer="delayed") == 2
    text = gateway.log.read_text()
    assert "4 wrong API keys from 127.0.0.1" in text
    assert "guessed" not in text
