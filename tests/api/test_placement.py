"""A conversation stays with the worker whose prefix cache holds it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.client import CHAT, http
from tests.harness.fleet import Process, Stack
from tests.harness.inner_settings import PATIENT, WARM_ONLY
from tests.harness.waiting import wait_for

RESPONSES = "/v1/responses"
BLOCK = "block of text " * 150
CACHE: dict[str, Any] = {"sim_cache_blocks": 1000, "sim_max_model_len": 100_000}


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
        answer = http.post(self._gateway.url + self._path, json=sent, timeout=60).raise_for_status()
        job = http.get(f"{self._gateway.url}/jobs/{answer.headers['x-flotilla-job-id']}").json()
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
    gateway = stack.gateway()
    for _ in range(3):
        stack.worker(**CACHE, **WARM_ONLY)
    conversations = [Conversation(gateway, f"conversation {n}", path) for n in range(6)]
    for turn in range(4):
        for each in conversations:
            usage = each.turn(blocks)
            assert path == RESPONSES or (cached(usage) > 0) == (turn > 0)
    assert all(len(set(each.workers)) == 1 for each in conversations)
    assert len({each.workers[0] for each in conversations}) > 1


def test_a_job_leaves_a_worker_that_stays_full(stack: Stack) -> None:
    gateway = stack.gateway(**PATIENT)
    for _ in range(2):
        stack.worker(**CACHE, **PATIENT, sim_max_num_seqs=1, sim_step_ms=50)
    talk = Conversation(gateway, "conversation")
    talk.turn(2)
    long = {"model": "simulated", "messages": talk._said, "max_tokens": 8000, "ignore_eos": True}
    request = {"endpoint": CHAT, "body": long}
    job_id = http.post(f"{gateway.url}/jobs", json=request).raise_for_status().json()["id"]
    at = f"{gateway.url}/jobs/{job_id}"
    wait_for(lambda: http.get(at).json()["state"] == "in_progress", "its worker is full")
    assert http.get(at).json()["worker"] == talk.workers[0]
    for _ in range(2):
        talk.turn(2)
    first, *others = talk.workers
    assert first not in others, "it waited for a moment, then another one took it"
    assert len(set(others)) == 1, "which is warm now"
    http.post(f"{at}/cancel").raise_for_status()
