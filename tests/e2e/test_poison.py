"""A request that ends every worker that runs it is one dead letter; all others are answered."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.fleet import Process, Stack

MODEL = "simulated"
CHAT = "/v1/chat/completions"
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
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        **fields,
    }


class Innocent(threading.Thread):
    """A call whose answer is not the poison's fault. Every other one is streamed."""

    def __init__(self, url: str, number: int) -> None:
        super().__init__(daemon=True)
        self.tokens = 0
        self.status = 0
        self.error = ""
        self._url, self._stream = url, number % 2 == 0
        self._text = f"innocent {number}"
        self.start()

    def run(self) -> None:
        try:
            self.tokens = self._read_stream() if self._stream else self._read_whole()
        except Exception as error:
            self.error = repr(error)

    def _read_whole(self) -> int:
        answer = httpx.post(f"{self._url}{CHAT}", json=body(self._text), timeout=120)
        self.status = answer.status_code
        tokens: int = answer.json()["usage"]["completion_tokens"]
        return tokens

    def _read_stream(self) -> int:
        asked = body(self._text, stream=True)
        with httpx.stream("POST", f"{self._url}{CHAT}", json=asked, timeout=120) as answer:
            self.status = answer.status_code
            events = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]", events[-1]
        chunks = [json.loads(event) for event in events[:-1]]
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
def test_one_poison_job_beside_innocent_ones_is_one_dead_letter_and_all_others_are_answered(
    fleet: Fleet, tokens: int
) -> None:
    url = fleet.gateway.url
    innocents = [Innocent(url, number) for number in range(INNOCENT // 2)]
    poison = httpx.post(f"{url}/jobs", json={"body": body("POISON")}).json()["id"]
    innocents += [Innocent(url, number) for number in range(INNOCENT // 2, INNOCENT)]
    until = time.monotonic() + 120
    while (ended := httpx.get(f"{url}/jobs/{poison}?wait=10", timeout=60).json())[
        "state"
    ] != "failed":
        assert time.monotonic() < until, ended
    for innocent in innocents:
        innocent.join(120)
    assert [(each.status, each.tokens, each.error) for each in innocents] == [
        (200, TOKENS, "")
    ] * INNOCENT
    assert ended["error"]["code"] == "too_many_attempts"
    added = [attempt["entries"] for attempt in ended["attempts"]]
    assert added[-MAX_ATTEMPTS:] == [0] * MAX_ATTEMPTS, "the last ones made no progress"
    assert sum(added) <= tokens
    assert fleet.ends == len(ended["attempts"]), "no worker ends but by the poison"
    assert fleet.gateway.metric("flotilla_dead_letters_written", what="attempts") == 1
