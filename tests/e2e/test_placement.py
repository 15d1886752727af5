"""A conversation stays with the worker whose prefix cache holds it."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.test_home_shards import advertised, settled
from tests.e2e.test_redis_faults import CHAT
from tests.harness.fleet import Process, Stack
from tests.harness.servers import fleet_on_one_node
from tests.harness.waiting import wait_for

RESPONSES = "/v1/responses"
BLOCK = "block of text " * 150
CACHE: dict[str, Any] = {"sim_cache_blocks": 1000, "sim_max_model_len": 100_000}
PATIENT: dict[str, Any] = {"placement": '{"patience_s": 60}', "silence_s": 60, "lease_s": 60}
"""On a busy machine a warm worker may be late, but no other one takes its jobs."""


class Conversation:
    """Its turns, each with all that was said before."""

    def __init__(self, gateway: Process, name: str, path: str = CHAT) -> None:
        self.workers: list[str] = []
        self._gateway, self._path = gateway, path
        self._said = [{"role": "user", "content": f"{name} {BLOCK * 4}"}]

    def turn(self, blocks: int) -> dict[str, int]:
        """Ask once more; returns the usage of the answer."""
        field = "input" if self._path == RESPONSES else "messages"
        sent = {"model": "simulated", field: self._said}
        answer = httpx.post(self._gateway.url + self._path, json=sent).raise_for_status()
        job = httpx.get(f"{self._gateway.url}/jobs/{answer.headers['x-flotilla-job-id']}").json()
        self.workers.append(job["worker"])
        self._said += [
            {"role": "assistant", "content": "an answer"},
            {"role": "user", "content": BLOCK * blocks},
        ]
        usage: dict[str, int] = answer.json()["usage"]
        return usage


def cached(usage: dict[str, Any]) -> float:
    """The part of a prompt that was found in the cache."""
    part: float = usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]
    return part


@pytest.mark.parametrize(
    ("path", "blocks"), [(CHAT, 2), (CHAT, 50), (RESPONSES, 2)], ids=["small", "large", "responses"]
)
def test_the_turns_of_a_conversation_run_where_it_is_cached(
    stack: Stack, path: str, blocks: int
) -> None:
    gateway = stack.gateway(**PATIENT)
    workers = [stack.worker(**CACHE, **PATIENT) for _ in range(3)]
    conversations = [Conversation(gateway, f"conversation {n}", path) for n in range(6)]
    for turn in range(4):
        for each in conversations:
            usage = each.turn(blocks)
            assert path == RESPONSES or (cached(usage) > 0) == (turn > 0)
    assert all(len(set(each.workers)) == 1 for each in conversations)
    assert len({each.workers[0] for each in conversations}) > 1
    counted: Counter[str] = Counter()
    for known in ("0", "2", "8", "32", "128"):
        for worker in workers:
            counted[known] += int(worker.metric("flotilla_placed_jobs_total", known_blocks=known))
    assert counted["0"] == 6
    assert sum(counted.values()) == 24


def test_a_job_leaves_a_worker_that_stays_full(stack: Stack) -> None:
    gateway = stack.gateway()
    for _ in range(2):
        stack.worker(**CACHE, sim_max_num_seqs=1, sim_step_ms=50)
    talk = Conversation(gateway, "conversation")
    talk.turn(2)
    long = {"model": "simulated", "messages": talk._said, "max_tokens": 400, "ignore_eos": True}
    request = {"endpoint": CHAT, "body": long}
    job_id = httpx.post(f"{gateway.url}/jobs", json=request).raise_for_status().json()["id"]
    at = f"{gateway.url}/jobs/{job_id}"
    wait_for(lambda: httpx.get(at).json()["state"] == "in_progress", "its worker is full")
    assert httpx.get(at).json()["worker"] == talk.workers[0]
    for _ in range(2):
        talk.turn(2)
    first, *others = talk.workers
    assert first not in others, "it waited for a moment, then another one took it"
    assert len(set(others)) == 1, "which is warm now"


def test_on_a_cluster_a_conversation_has_one_shard_and_worker(tmp_path: Path) -> None:
    cluster = fleet_on_one_node(tmp_path / "cluster")
    with contextlib.closing(cluster):
        cluster.start()
        with contextlib.closing(Stack(cluster.url, tmp_path)) as stack:
            gateway = stack.gateway(shards=4, **PATIENT)
            for _ in range(3):
                stack.worker(shards=4, **CACHE, **PATIENT)
            wait_for(lambda: settled(cluster, 3, 4), "the shards have workers")
            wait_for(lambda: advertised(cluster, 4), "others have left them")
            talks = [Conversation(gateway, f"conversation {n}") for n in range(8)]
            for talk in talks:
                parts = [cached(talk.turn(2)) for _ in range(4)]
                assert min(parts[1:]) > 0.4
            assert all(len(set(talk.workers)) == 1 for talk in talks)
