"""Broken and hostile requests to real vLLM: the right errors, at once, and no harm to others."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.processes import Process, Stack
from tests.models.hostile_requests import CHAT, SHORT, Hostile, hostile_requests
from tests.redis_server import RedisServer
from tests.waiting import wait_for

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

LOADING_S = 240.0
ANSWER_S = 10.0
"""Longest time to an answer of a hostile request."""
OTHERS_S = 2.0
"""Longest time to the answer of a short question beside them."""
AT_ONCE = 4


@pytest.fixture(scope="module")
def fleet(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Process, Process]]:
    """A gateway and a worker with real vLLM."""
    with redis_server.client() as client:
        client.flushall()
    stack = Stack(redis_server.url, tmp_path_factory.mktemp("fleet"))
    worker = stack.worker(wait=False, engine="vllm")
    gateway = stack.gateway()
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
    elif took > ANSWER_S:
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
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as api:
        questions = OtherClient(api)
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
    worker.check()
    assert worker.metric("flotilla_worker_slots", state="busy") == 0
