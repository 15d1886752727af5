"""A request that ends every worker that runs it fails; all others are answered."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.client import Call, chat, job, join, submit
from tests.harness.fleet import Process, Stack
from tests.harness.waiting import wait_for

INNOCENT = 20
TOKENS = 60
WORKERS = 2
MAX_ATTEMPTS = 3


class Fleet:
    """A gateway and workers; a worker that ends is replaced, as a supervisor does."""

    def __init__(self, stack: Stack, faults: str) -> None:
        self.gateway = stack.gateway()
        self.ends = 0
        self._stack = stack
        self._settings = {"sim_step_ms": 10, "sim_step_us_per_seq": 0, "sim_faults": faults}
        self._workers: list[Process] = []
        self._stopped = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        for _ in range(WORKERS):
            self._workers.append(stack.worker(**self._settings))
        self._keeper.start()

    def _keep(self) -> None:
        while not self._stopped.wait(0.02):
            for index, worker in enumerate(self._workers):
                if worker.popen.poll() is not None:
                    self.ends += 1
                    self._workers[index] = self._stack.worker(wait=False, **self._settings)

    def close(self) -> None:
        self._stopped.set()
        self._keeper.join(30)


@pytest.fixture
def fleet(stack: Stack, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    fleet = Fleet(stack, request.param)
    yield fleet
    fleet.close()


def body(text: str, **fields: Any) -> dict[str, Any]:
    return chat(text, max_tokens=TOKENS, ignore_eos=True, **fields)


def innocents(fleet: Fleet, numbers: range) -> list[Call]:
    """Calls whose answer is not the poison's fault. Every other one is streamed."""
    bodies = [body(f"innocent {n}", stream=n % 2 == 0) for n in numbers]
    return [Call(fleet.gateway, each, 120) for each in bodies]


def tokens_of(call: Call) -> int:
    """How many tokens a client has got of a whole answer."""
    if not call.body["stream"]:
        return int(json.loads(call.lines[0])["usage"]["completion_tokens"])
    assert call.events[-1] == "[DONE]", call.events[-1]
    chunks = [json.loads(event) for event in call.events[:-1]]
    return sum(bool(chunk["choices"][0]["delta"].get("content")) for chunk in chunks)


@pytest.mark.parametrize(
    ("fleet", "tokens"),
    [
        ("kill_on_prompt=POISON", 0),
        ("kill_on_prompt=POISON,kill_after_tokens=3", 3),
        ("die_on_prompt=POISON,kill_after_tokens=3", 3),
    ],
    indirect=["fleet"],
)
def test_one_poison_job_beside_innocent_ones_fails_and_all_others_are_answered(
    fleet: Fleet, tokens: int
) -> None:
    calls = innocents(fleet, range(INNOCENT // 2))
    poison = submit(fleet.gateway, body("POISON"))
    calls += innocents(fleet, range(INNOCENT // 2, INNOCENT))
    wait_for(lambda: job(fleet.gateway, poison)["state"] == "failed", "it is given up", 120)
    join(calls, 120)
    assert [(call.status, tokens_of(call)) for call in calls] == [(200, TOKENS)] * INNOCENT
    ended = job(fleet.gateway, poison)
    assert ended["error"]["code"] == "too_many_attempts"
    assert fleet.gateway.metric("flotilla_jobs_given_up") == 1
    added = [attempt["entries"] for attempt in ended["attempts"]]
    assert added[-MAX_ATTEMPTS:] == [0] * MAX_ATTEMPTS, "the last ones made no progress"
    assert sum(added) <= tokens
    assert fleet.ends == len(ended["attempts"]), "no worker ends but by the poison"
