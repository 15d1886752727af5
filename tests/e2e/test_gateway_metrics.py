"""Metrics of the fleet and of Redis: normally, and when Redis is full, away or hangs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from shared.store.redis import keys
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for

READY = "flotilla_gateway_ready"
USED = "flotilla_redis_memory_used_bytes"
OF_REDIS = ("flotilla_queue_depth", "flotilla_workers", "flotilla_redis_aof_ok", USED)


@pytest.fixture
def gateway(own_redis: RedisServer, tmp_path: Path) -> Iterator[Process]:
    """A gateway on a Redis of its own, with a worker that has answered a call."""
    stack = Stack(own_redis.url, tmp_path)
    gateway = stack.gateway()
    stack.worker()
    body = {"model": "simulated", "messages": [{"role": "user", "content": "hello"}]}
    answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=30)
    assert answer.status_code == 200
    yield gateway
    stack.close()


def test_the_metrics_show_the_fleet_and_redis(gateway: Process, own_redis: RedisServer) -> None:
    wait_for(lambda: gateway.metric("flotilla_workers", pool="simulated") == 1, "the worker shows")
    assert gateway.metric(READY, check="redis") == gateway.metric(READY, check="relay") == 1
    assert all(gateway.has(name) for name in OF_REDIS)
    assert gateway.metric("flotilla_redis_aof_enabled") == 1
    assert gateway.metric("flotilla_redis_memory_limit_bytes") == 0
    assert gateway.metric("flotilla_dead_letters") == 0
    with own_redis.client() as client:
        client.xadd(keys.dead_letters(0), {"job": "job_0"})
        client.config_set("maxmemory", 1 << 30)
        client.config_set("appendonly", "no")
    assert gateway.metric("flotilla_dead_letters") == 1
    assert gateway.metric("flotilla_redis_memory_limit_bytes") == 1 << 30
    assert gateway.metric("flotilla_redis_aof_enabled") == 0


def test_a_full_redis_is_not_writable_and_its_metrics_are_still_read(
    gateway: Process, own_redis: RedisServer
) -> None:
    with own_redis.client() as client:
        client.config_set("maxmemory", 1)
        assert gateway.metric(READY, check="redis") == 0
        assert gateway.metric(READY, check="relay") == 1
        assert all(gateway.has(name) for name in OF_REDIS)
        assert gateway.metric(USED) > gateway.metric("flotilla_redis_memory_limit_bytes") == 1
        client.config_set("maxmemory", 0)
    assert gateway.metric(READY, check="redis") == 1


def test_without_redis_its_metrics_have_no_value(gateway: Process, own_redis: RedisServer) -> None:
    own_redis.stop()
    assert gateway.metric(READY, check="redis") == 0
    assert not any(gateway.has(name) for name in OF_REDIS)
    assert "flotilla_dead_letters NaN" in httpx.get(f"{gateway.url}/metrics").text
    assert gateway.has("flotilla_answer_seconds_count")  # counted by the gateway itself
    own_redis.start()
    wait_for(lambda: all(gateway.has(name) for name in OF_REDIS), "Redis is back")
    assert gateway.metric(READY, check="redis") == 1


def test_a_redis_that_hangs_does_not_time_out_the_scrape(
    gateway: Process, own_redis: RedisServer
) -> None:
    with own_redis.client() as client:
        pid = client.info("server")["process_id"]
    os.kill(pid, signal.SIGSTOP)
    try:
        # The scrape timeout of prometheus.yml is nine seconds.
        text = httpx.get(f"{gateway.url}/metrics", timeout=9).text
    finally:
        os.kill(pid, signal.SIGCONT)
    assert f'{READY}{{check="redis"}} 0.0' in text
    assert USED not in text
