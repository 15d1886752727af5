"""Broken and hostile requests to real vLLM: the right errors, and no harm to others."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.client import http
from tests.harness.fleet import Process
from tests.harness.waiting import wait_for
from tests.vllm.conftest import ModelFleet, ServedModel
from tests.vllm.hostile_requests import (
    CHAT,
    COMPLETIONS,
    MESSAGE,
    MESSAGES,
    MODEL,
    RESPONSES,
    SHORT,
    Hostile,
    hostile_requests,
)
from tests.vllm.random_requests import RandomRequests

pytestmark = pytest.mark.vllm

ANSWER_S = 300.0
"""Within this time each request has its answer, hostile or not: none stops the worker."""
LONGEST_ERROR = 100_000
"""vLLM says of one wrong element what is wrong for each of the sixty types that it may have."""
AT_ONCE = 4
KEY = {"authorization": "Bearer s3cret"}
"""Not an operator's: those may stop the fleet."""
EXAMPLES = 15
"""Of each operation in the description."""
LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    "400 messages": (CHAT, {"messages": [MESSAGE] * 400, "max_tokens": 1}),
    "400 items": (RESPONSES, {"input": [MESSAGE] * 400, "max_output_tokens": 1}),
    "40 tools": (
        CHAT,
        {
            "messages": [MESSAGE],
            "max_tokens": 1,
            "tool_choice": "none",
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": f"f{i}",
                        "parameters": {
                            "type": "object",
                            "properties": {f"p{j}": {"type": "string"} for j in range(20)},
                        },
                    },
                }
                for i in range(40)
            ],
        },
    ),
    "2,000 tokens": (COMPLETIONS, {"prompt": [100] * 2000, "max_tokens": 1}),
    "three prompts": (COMPLETIONS, {"prompt": [[100] * 900] * 3, "max_tokens": 1}),
}
"""Large, but right."""
TOP = {"messages": [MESSAGE], "logprobs": True, "top_logprobs": 20, "ignore_eos": True}


@pytest.fixture(scope="module")
def gateway(fleet: ModelFleet) -> Process:
    """A gateway that asks for keys, for the demo model's worker."""
    return fleet.stack.gateway(api_keys="team:s3cret", admin_keys="operator:adm1n")


@pytest.fixture
def api(demo: ServedModel, gateway: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=ANSWER_S, headers=KEY) as client:
        yield client


async def problem_of(api: httpx.AsyncClient, request: Hostile) -> str:
    """What is wrong with the answer; empty if nothing is."""
    answer = await api.post(request.path, content=request.body, headers=request.headers)
    if answer.status_code not in request.statuses:
        return f"{answer.status_code} {answer.text[:300]}"
    if answer.status_code == 200:
        wrong = '"code":500' in answer.text
        return f"an internal error in the stream: {answer.text[:300]}" if wrong else ""
    error = answer.json()["error"]
    if len(answer.content) > LONGEST_ERROR:
        return f"a long error: {answer.text[:300]}"
    openais = {"type", "message", "param"} <= error.keys() or request.path == MESSAGES
    right = error["message"] and error["type"] and openais
    return "" if right else f"not the API's shape: {answer.text[:300]}"


async def test_hostile_requests(demo: ServedModel, gateway: Process) -> None:
    answered = 0
    async with httpx.AsyncClient(base_url=gateway.url, timeout=ANSWER_S, headers=KEY) as api:

        async def ask() -> None:
            nonlocal answered
            answer = await api.post(CHAT, json=SHORT)
            assert answer.status_code == 200, answer.text
            answered += 1

        async def ask_on() -> None:
            while True:
                await ask()
                await asyncio.sleep(0.05)

        slots = asyncio.Semaphore(AT_ONCE)
        problems: dict[str, str] = {}

        async def send(request: Hostile) -> None:
            async with slots:
                if problem := await problem_of(api, request):
                    problems[request.name] = problem

        others = asyncio.create_task(ask_on())
        await asyncio.gather(*map(send, hostile_requests()))
        assert not others.done(), others.exception()
        others.cancel()
        assert answered
        assert not problems, json.dumps(problems, indent=1)
        await ask()
    healthy(gateway, demo.worker)


@pytest.mark.parametrize("name", LARGE)
def test_large_right_bodies_are_answered(api: httpx.Client, name: str) -> None:
    path, fields = LARGE[name]
    answer = api.post(path, json={"model": MODEL, **fields})
    assert answer.status_code == 200, answer.text[:500]


@pytest.mark.parametrize("n", [1, 4])
def test_log_probabilities_of_an_answer_in_one_piece_are_counted(api: httpx.Client, n: int) -> None:
    """Its request does not say how many they become."""
    body = {"model": MODEL, "n": n, **TOP}
    answer = api.post(CHAT, json={**body, "max_tokens": 300 // n})
    assert answer.status_code == 200, answer.text[:500]
    refused = api.post(CHAT, json=body)
    assert refused.status_code == 400, refused.text[:500]
    assert "more than 6500 log probabilities" in refused.json()["error"]["message"]
    streamed = api.post(CHAT, json={**body, "max_tokens": 700, "stream": True})
    assert streamed.status_code == 200, "of a stream they are not"
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert '"error"' not in streamed.text


def test_conversations_of_one_body_are_counted_together(api: httpx.Client) -> None:
    body = {"model": MODEL, **TOP, "messages": [[MESSAGE]] * 3, "max_tokens": 150}
    refused = api.post("/v1/chat/completions/batch", json=body)
    assert refused.status_code == 400, refused.text[:500]
    assert "6500" in refused.json()["error"]["message"]


def healthy(gateway: Process, worker: Process) -> None:
    """Fail unless the fleet answers, and nothing of what was sent is left in it."""
    worker.check()
    answer = http.post(f"{gateway.url}{CHAT}", json=SHORT, headers=KEY, timeout=60)
    assert answer.status_code == 200
    wait_for(lambda: worker.metric("flotilla_worker_slots", use="busy") == 0, "idle")
    for state in ("queued", "in_progress"):
        jobs = http.get(f"{gateway.url}/jobs?state={state}", headers=KEY).json()["data"]
        assert jobs == []


def test_everything_in_the_description_with_random_requests(
    demo: ServedModel, gateway: Process
) -> None:
    """Also with bodies and parameters that the description does not allow."""
    described = http.get(f"{gateway.url}/openapi.json").json()
    problems: list[str] = []
    statuses: Counter[int] = Counter()
    with httpx.Client(base_url=gateway.url, headers=KEY, timeout=ANSWER_S) as api:
        for request in RandomRequests(described, MODEL).make(EXAMPLES):
            answer = api.request(**request)
            statuses[answer.status_code] += 1
            if answer.status_code >= 500 and answer.status_code != 501:
                problems.append(f"{str(request)[:300]} {answer.status_code} {answer.text[:300]}")
    assert not problems, "\n".join(problems)
    assert min(statuses[200], statuses[400]) > EXAMPLES, statuses
    healthy(gateway, demo.worker)
