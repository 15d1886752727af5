"""Real vLLM in `make test`: a chat, a stream, a completion, tokens, an error, and answers whose
worker is killed. All other tests with real vLLM are in `make test-vllm`.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.harness.client import CHAT, Call, http, job, join
from tests.harness.fleet import Process, Stack
from tests.harness.models import DEMO
from tests.harness.settings import ROOT
from tests.harness.waiting import wait_for

pytestmark = [pytest.mark.vllm, pytest.mark.main_path]

LOADED_S = 600.0
LEASE_S = 15.0
"""vLLM may stop a worker's event loop for seconds where machines are busy."""
SHORT: dict[str, Any] = {
    "model": DEMO,
    "messages": [{"role": "user", "content": "What is Flotilla?"}],
    "temperature": 0,
    "max_tokens": 40,
}
STORY: dict[str, Any] = {
    "model": DEMO,
    "messages": [{"role": "user", "content": "Tell me a story about a queue."}],
    "max_tokens": 800,
    "ignore_eos": True,
    "stream": True,
}
"""Its worker is killed long before the end."""
SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.2, "seed": 5, "presence_penalty": 1.0},
]


@dataclass
class Fleet:
    """A gateway, and two workers with real vLLM."""

    gateway: Process
    workers: dict[str, Process]

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return http.post(f"{self.gateway.url}{path}", json=body, timeout=120)

    def attempts(self, call: Call) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = job(self.gateway, call.job_id)["attempts"]
        return found


@pytest.fixture(scope="module")
def fleet(module_stack: Stack) -> Fleet:
    # With float32 an answer does not depend on what else is in the batch.
    settings = {"engine": "vllm", "engine_args": "--dtype float32", "lease_s": LEASE_S}
    workers = {
        name: module_stack.worker(wait=False, worker_id=name, **settings) for name in ("w-1", "w-2")
    }
    gateway = module_stack.gateway()
    for name, worker in workers.items():
        wait_for(worker.ready, f"{name} is ready", LOADED_S)
    return Fleet(gateway, workers)


def test_a_chat_and_its_stream(fleet: Fleet) -> None:
    answer = fleet.post(CHAT, SHORT)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["message"]["content"].startswith("Flotilla is")
    stream = Call(fleet.gateway, {**SHORT, "stream": True})
    join([stream])
    assert stream.text == choice["message"]["content"]
    assert stream.events[-1] == "[DONE]"


def test_the_readmes_call(fleet: Fleet) -> None:
    (call,) = re.findall(r"```sh\n(curl .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    command = call.replace("http://127.0.0.1:8000", fleet.gateway.url)
    ran = subprocess.run(
        ["sh", "-euc", command], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "data: [DONE]" in ran.stdout


def test_a_completion_and_its_tokens(fleet: Fleet) -> None:
    prompt = {"model": DEMO, "prompt": "A queue is"}
    completion = fleet.post("/v1/completions", {**prompt, "temperature": 0, "max_tokens": 8}).json()
    assert completion["choices"][0]["text"].strip()
    tokens = fleet.post("/tokenize", prompt).json()["tokens"]
    assert len(tokens) == completion["usage"]["prompt_tokens"]
    text = fleet.post("/detokenize", {"model": DEMO, "tokens": tokens}).json()["prompt"]
    assert text == prompt["prompt"]


def test_vllms_error_is_passed_on(fleet: Fleet) -> None:
    refused = fleet.post(CHAT, {**SHORT, "temperature": -1})
    assert refused.status_code == 400
    assert refused.headers["x-flotilla-job-id"]
    error = refused.json()["error"]
    assert "temperature" in error["message"]
    assert error["type"] == "BadRequestError"


def test_answers_go_on_when_their_worker_is_killed(fleet: Fleet) -> None:
    undisturbed = [Call(fleet.gateway, STORY | each, LOADED_S) for each in SAMPLING]
    join(undisturbed, LOADED_S)
    calls = [Call(fleet.gateway, STORY | each, LOADED_S) for each in SAMPLING]
    wait_for(lambda: all(call.text for call in calls), "all have begun", LOADED_S)
    hit = fleet.attempts(calls[0])[-1]["worker"]
    fleet.workers[hit].kill()
    join(calls, LOADED_S)
    assert [call.text for call in calls] == [call.text for call in undisturbed]
    assert all(call.events[-1] == "[DONE]" for call in calls)
    assert hit != fleet.attempts(calls[0])[-1]["worker"]
    outcomes = [attempt["outcome"] for attempt in fleet.attempts(calls[0])]
    # A worker without CPU time for long counts as lost, too.
    assert set(outcomes[:-1]) == {"worker_lost"}
    assert outcomes[-1] == "completed"
