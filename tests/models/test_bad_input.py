"""Broken and hostile requests to real vLLM: the right errors, at once, and no harm to others."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for
from tests.models.hostile_requests import CHAT, SHORT, Hostile, hostile_requests

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

LOADING_S = 240.0
ANSWER_S = 10.0
"""Longest time to the refusal of a hostile request."""
OTHERS_S = 2.0
"""Longest time to the answer of a short question beside them."""
AT_ONCE = 4
KEY = {"authorization": "Bearer s3cret"}
"""Not an operator's: those may stop the fleet."""
EXAMPLES = 30
"""Of each operation in the description."""


@pytest.fixture(scope="module")
def fleet(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Process, Process]]:
    """A gateway and a worker with real vLLM."""
    with redis_server.client() as client:
        client.flushall()
    stack = Stack(redis_server.url, tmp_path_factory.mktemp("fleet"))
    worker = stack.worker(wait=False, engine="vllm")
    gateway = stack.gateway(api_keys="team:s3cret", admin_keys="operator:adm1n")
    wait_for(worker.ready, "vLLM has loaded", LOADING_S)
    yield gateway, worker
    stack.close()


class OtherClient:
    """A client that asks a short question, again and again."""

    def __init__(self, api: httpx.AsyncClient) -> None:
        self._api = api
        self.seconds: list[float] = []
        self.during: dict[float, str] = {}
        self.now = ""

    async def ask(self) -> None:
        began = time.monotonic()
        answer = await self._api.post(CHAT, json=SHORT)
        assert answer.status_code == 200, answer.text
        self.seconds.append(time.monotonic() - began)
        self.during[self.seconds[-1]] = self.now

    async def ask_on(self) -> None:
        while True:
            await self.ask()
            await asyncio.sleep(0.05)


async def send(api: httpx.AsyncClient, request: Hostile) -> tuple[str, float]:
    """What is wrong with the answer, and the time it took."""
    began = time.monotonic()
    answer = await api.post(request.path, content=request.body, headers=request.headers)
    took = time.monotonic() - began
    problem = ""
    if answer.status_code not in request.statuses:
        problem = f"{answer.status_code} {answer.text[:300]}"
    elif answer.status_code != 200 and took > ANSWER_S:
        problem = f"{answer.status_code} after {took:.1f} s"
    elif answer.status_code != 200:
        error = answer.json()["error"]
        if not error["message"] or not error["type"] or "param" not in error:
            problem = f"not OpenAI's shape: {answer.text[:300]}"
    elif '"code":500' in answer.text:
        problem = f"an internal error in the stream: {answer.text[:300]}"
    return problem, took


async def test_hostile_requests(fleet: tuple[Process, Process]) -> None:
    gateway, worker = fleet
    requests = list(hostile_requests())
    assert len(requests) > 200
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60, headers=KEY) as api:
        questions = OtherClient(api)
        # vLLM compiles the code for log probabilities when it first needs it.
        first = SHORT | {"logprobs": True, "top_logprobs": 2, "temperature": 1, "n": 2}
        assert (await api.post(CHAT, json=first)).status_code == 200
        for _ in range(20):
            await questions.ask()
        alone = max(questions.seconds[5:])
        questions.seconds.clear()
        asking = asyncio.create_task(questions.ask_on())
        slots = asyncio.Semaphore(AT_ONCE)
        problems: dict[str, str] = {}

        async def run(request: Hostile) -> None:
            async with slots:
                questions.now += f" {request.name};"
                problem, took = await send(api, request)
                questions.now = questions.now.replace(f" {request.name};", "")
                print(f"{took:6.2f} s  {request.name}")
                if problem:
                    problems[request.name] = problem

        try:
            await asyncio.gather(*map(run, requests))
        finally:
            asking.cancel()
        slowest = max(questions.seconds)
        print(f"{len(questions.seconds)} questions, alone {alone:.2f} s, slowest {slowest:.2f} s:")
        print(questions.during[slowest])
        assert not problems, json.dumps(problems, indent=1)
        assert slowest < max(OTHERS_S, 5 * alone), questions.during[slowest]
        for _ in range(3):
            await questions.ask()
    healthy(gateway, worker)


def healthy(gateway: Process, worker: Process) -> None:
    """Fail unless the fleet answers, and nothing of what was sent is left in it."""
    worker.check()
    answer = httpx.post(f"{gateway.url}{CHAT}", json=SHORT, headers=KEY, timeout=60)
    assert answer.status_code == 200
    wait_for(lambda: worker.metric("flotilla_worker_slots", state="busy") == 0, "idle", 30)
    for state in ("queued", "in_progress"):
        jobs = httpx.get(f"{gateway.url}/jobs?state={state}", headers=KEY).json()["data"]
        assert jobs == []


def test_everything_in_the_description_with_random_requests(
    fleet: tuple[Process, Process],
) -> None:
    """Also with bodies and parameters that the description does not allow."""
    gateway, worker = fleet
    schema = schemathesis.openapi.from_url(f"{gateway.url}/openapi.json")
    problems: list[str] = []
    for found in schema.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy())
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        def send_one(case: schemathesis.Case) -> None:
            if isinstance(case.body, dict) and "model" in case.body:
                case.body["model"] = SHORT["model"]  # else nearly all would be 404
            began = time.monotonic()
            answer = case.call(base_url=gateway.url, headers=KEY, timeout=60)
            took = time.monotonic() - began
            if took > ANSWER_S or (answer.status_code >= 500 and answer.status_code != 501):
                problems.append(
                    f"{case.method} {case.path} {answer.status_code} {took:.1f} s "
                    f"{str(case.body)[:300]} {answer.text[:300]}"
                )

        send_one()
    assert not problems, "\n".join(problems)
    healthy(gateway, worker)
