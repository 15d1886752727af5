"""A fleet on a Redis Cluster without a majority. tests/faults/test_cluster.py has the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.test_redis_faults import (
    CHAT,
    FAST,
    Stream,
    answers_again,
    body,
    check_no_splice,
    join,
    whole_answers,
)
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisCluster
from tests.harness.waiting import wait_for

SHARDS = 3
STREAMS = 12
SETTINGS: dict[str, Any] = {"shards": SHARDS, "lease_s": 60.0}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RedisCluster]:
    """Three masters with a replica each, a shard on each."""
    cluster = RedisCluster(tmp_path / "cluster", SHARDS, replicas=True)
    with contextlib.closing(cluster):
        cluster.start()
        yield cluster


@pytest.fixture
def gateway(cluster: RedisCluster, tmp_path: Path) -> Iterator[Process]:
    """Of a fleet with two workers."""
    stack = Stack(cluster.url, tmp_path)
    try:
        gateway = stack.gateway(**SETTINGS)
        for _ in range(2):
            stack.worker(**FAST, **SETTINGS)
        yield gateway
    finally:
        stack.close()


def begin(gateway: Process) -> tuple[list[Stream], dict[str, str]]:
    """Streams that have begun, on all shards, and the right answers."""
    prompts = [f"prompt {n}" for n in range(STREAMS)]
    right = whole_answers(gateway, prompts)
    streams = [Stream(gateway, prompt) for prompt in prompts]
    wait_for(lambda: all(len(each.events) > 10 for each in streams), "all streams have begun")
    return streams, right


def test_without_a_majority_calls_are_refused_and_streams_go_on_afterwards(
    cluster: RedisCluster, gateway: Process
) -> None:
    streams, right = begin(gateway)
    down = [cluster.masters[0], cluster.masters[1]]
    for node in down:
        node.kill()

    def not_ready() -> bool:
        return httpx.get(f"{gateway.url}/readyz", timeout=30).status_code == 503

    wait_for(not_ready, "the gateway is not ready")
    answer = httpx.post(gateway.url + CHAT, json=body("new", max_tokens=2), timeout=60)
    assert answer.status_code == 503
    assert httpx.get(f"{gateway.url}/healthz", timeout=30).status_code == 200
    for node in down:
        node.start()
    join(streams)
    check_no_splice(streams, right)
    assert {stream.error for stream in streams} <= {"", "stream_reset"}
    answers_again(gateway)
