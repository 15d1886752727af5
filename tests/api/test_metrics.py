"""Metrics of the fleet and of Redis: normally, and when Redis is full, away or hangs."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from tests.harness.client import CHAT, chat, http
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for

READY = "flotilla_gateway_ready"
USED = "flotilla_redis_memory_used_bytes"
OF_REDIS = ("flotilla_queue_depth", "flotilla_workers", "flotilla_redis_aof_ok", USED)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis of their own, which each test leaves well."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def fleet(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A gateway with a worker that has answered a call."""
    with contextlib.closing(Stack(redis.url, tmp_path_factory.mktemp("fleet"))) as stack:
        gateway = stack.gateway()
        stack.worker()
        answer = http.post(f"{gateway.url}{CHAT}", json=chat(), timeout=60)
        assert answer.status_code == 200
        yield gateway


@pytest.fixture
def gateway(fleet: Process) -> Process:
    """The gateway, once it is ready."""
    wait_for(lambda: fleet.metric(READY, check="redis") == 1, "Redis is ready")
    return fleet


def test_the_metrics_show_the_fleet_and_redis(gateway: Process, redis: RedisServer) -> None:
    wait_for(lambda: gateway.metric("flotilla_workers", pool="simulated") == 1, "the worker shows")
    assert gateway.metric(READY, check="redis") == gateway.metric(READY, check="relay") == 1
    assert all(gateway.has(name) for name in OF_REDIS)
    assert gateway.metric("flotilla_redis_aof_enabled") == 1
    assert gateway.metric("flotilla_redis_memory_limit_bytes") == 0
    with redis.client() as client:
        client.config_set("maxmemory", 1 << 30)
        client.config_set("appendonly", "no")
        try:
            assert gateway.metric("flotilla_redis_memory_limit_bytes") == 1 << 30
            assert gateway.metric("flotilla_redis_aof_enabled") == 0
        finally:
            client.config_set("maxmemory", 0)
            client.config_set("appendonly", "yes")


def test_a_full_redis_is_not_writable_and_its_metrics_are_still_read(
    gateway: Process, redis: RedisServer
) -> None:
    with redis.client() as client:
        client.config_set("maxmemory", 1)
        try:
            assert gateway.metric(READY, check="redis") == 0
            assert gateway.metric(READY, check="relay") == 1
            assert all(gateway.has(name) for name in OF_REDIS)
            assert gateway.metric(USED) > gateway.metric("flotilla_redis_memory_limit_bytes") == 1
        finally:
            client.config_set("maxmemory", 0)
    assert gateway.metric(READY, check="redis") == 1


def test_without_redis_its_metrics_have_no_value(gateway: Process, redis: RedisServer) -> None:
    redis.stop()
    assert gateway.metric(READY, check="redis") == 0
    assert not any(gateway.has(name) for name in OF_REDIS)
    assert gateway.has("flotilla_open_streams")  # counted by the gateway itself
    redis.start()
    wait_for(lambda: all(gateway.has(name) for name in OF_REDIS), "Redis is back")
    wait_for(lambda: gateway.metric(READY, check="redis") == 1, "it may be written")


def test_a_redis_that_hangs_does_not_hang_the_scrape(gateway: Process, redis: RedisServer) -> None:
    with redis.client() as client:
        pid = client.info("server")["process_id"]
    os.kill(pid, signal.SIGSTOP)
    try:
        text = http.get(f"{gateway.url}/metrics", timeout=60).text
    finally:
        os.kill(pid, signal.SIGCONT)
    assert f'{READY}{{check="redis"}} 0.0' in text
    assert USED not in text
