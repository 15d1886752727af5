"""Every process refuses a Redis that evicts, and a gateway is not ready while it does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.harness.fleet import Stack, metric
from tests.harness.servers import RedisServer
from tests.harness.settings import child_environment
from tests.harness.waiting import wait_for


@pytest.fixture
def evicting(tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder)
    server.options = {"maxmemory": str(100 << 20), "maxmemory-policy": "allkeys-lru"}
    server.start()
    yield server
    server.stop()


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "gateway"],
        ["-m", "worker"],
        ["-m", "gateway.maintenance"],
        ["-c", "from gateway.cli.main import main; main()", "up"],
    ],
)
def test_it_is_refused_at_start(evicting: RedisServer, tmp_path: Path, command: list[str]) -> None:
    environment = child_environment(redis_url=evicting.url, engine="simulated", port=0)
    ended = subprocess.run(
        [sys.executable, *command],
        env=environment | {"PYTHONPATH": str(Path.cwd())},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    where = evicting.url.removeprefix("redis://")
    assert f"Redis {where} can't be used for jobs: its maxmemory-policy allkeys-lru" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_gateway_is_not_ready_while_redis_evicts(evicting: RedisServer, tmp_path: Path) -> None:
    with evicting.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
        stack = Stack(evicting.url, tmp_path)
        try:
            gateway = stack.gateway()
            assert metric(gateway.url, "flotilla_redis_evicts") == 0
            client.config_set("maxmemory-policy", "volatile-lru")
            wait_for(lambda: not gateway.ready(), "it is not ready")
            answer = httpx.get(f"{gateway.url}/readyz")
            assert answer.status_code == 503
            assert "volatile-lru" in answer.json()["checks"]["eviction"]
            assert metric(gateway.url, "flotilla_redis_evicts") == 1
            assert metric(gateway.url, "flotilla_gateway_ready", check="eviction") == 0
            client.config_set("maxmemory-policy", "noeviction")
            wait_for(gateway.ready, "it is ready again")
        finally:
            stack.close()
