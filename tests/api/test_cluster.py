"""A fleet on a Redis Cluster without a majority. tests/faults/test_cluster.py has the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.client import CHAT, Call, chat, http, join
from tests.harness.fleet import Process, Stack
from tests.harness.inner_settings import PATIENT
from tests.harness.servers import RedisCluster
from tests.harness.waiting import wait_for

SHARDS = 3
STREAMS = 12
SETTINGS: dict[str, Any] = {"shards": SHARDS, **PATIENT}


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
            stack.worker(sim_step_ms=25, sim_step_us_per_seq=0, **SETTINGS)
        yield gateway
    finally:
        stack.close()


def started(gateway: Process) -> list[Call]:
    """A streamed call for each prompt."""
    sent = {"stream": True, "max_tokens": 100, "ignore_eos": True}
    return [Call(gateway, chat(f"prompt {n}", **sent), timeout_s=120) for n in range(STREAMS)]


def test_without_a_majority_calls_are_refused_and_streams_go_on_afterwards(
    cluster: RedisCluster, gateway: Process
) -> None:
    undisturbed = started(gateway)
    join(undisturbed, 120)
    assert {stream.error for stream in undisturbed} == {""}
    streams = started(gateway)
    wait_for(lambda: all(len(each.events) > 10 for each in streams), "all streams have begun")
    down = [cluster.masters[0], cluster.masters[1]]
    for node in down:
        node.kill()

    def not_ready() -> bool:
        return http.get(f"{gateway.url}/readyz", timeout=60).status_code == 503

    wait_for(not_ready, "the gateway is not ready")
    answer = http.post(gateway.url + CHAT, json=chat("new", max_tokens=2), timeout=60)
    assert answer.status_code == 503
    assert http.get(f"{gateway.url}/healthz", timeout=60).status_code == 200
    for node in down:
        node.start()
    join(streams, 120)
    assert {stream.error for stream in streams} <= {"", "stream_reset"}
    for stream, right in zip(streams, undisturbed, strict=True):
        assert right.text.startswith(stream.text)
        assert stream.error or stream.text == right.text

    def answers() -> bool:
        try:
            answer = http.post(gateway.url + CHAT, json=chat("again", max_tokens=3), timeout=10)
        except httpx.TimeoutException:
            return False
        assert answer.status_code in {200, 404, 503}, answer.text  # 404: no model is known yet
        return answer.status_code == 200

    wait_for(answers, "a new call is answered")
