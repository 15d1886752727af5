"""A fleet is replaced process by process under load: nothing fails, and nothing is cut."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.harness.client import CHAT, ResumingTransport, chat, outcomes
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer
from tests.harness.settings import ROOT
from tests.harness.waiting import wait_for

NEXT_RELEASE = (sys.executable, str(ROOT / "tests/harness/stand_ins/next_release.py"))
ENGINE = {"sim_step_ms": 20, "sim_step_us_per_seq": 0, "sim_max_num_seqs": 64}
TOKENS = 60
PROMPTS = 8


class Client(threading.Thread):
    """Calls in a loop, streamed and whole in turn, until `stop`; notes what was not right."""

    def __init__(self, number: int, api: httpx.Client, right: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self.wrong: list[str] = []
        self.job_ids: list[str] = []
        """One for each answer so far."""
        self._number, self._api, self._right = number, api, right
        self._stopped = threading.Event()
        self.start()

    def stop(self) -> None:
        self._stopped.set()
        self.join(60)
        assert not self.is_alive(), "a client hangs"
        self._api.close()

    def run(self) -> None:
        while not self._stopped.is_set():
            turn = self._number + len(self.job_ids)
            prompt = f"prompt {turn % PROMPTS}"
            try:
                job_id, text = ask(self._api, prompt, stream=turn % 2 == 0)
            except Exception as error:
                self.wrong.append(repr(error))
                continue
            self.job_ids.append(job_id)
            if text != self._right[prompt]:
                self.wrong.append(f"{prompt}: {text!r}")


def ask(api: httpx.Client, prompt: str, *, stream: bool) -> tuple[str, str]:
    """The id of a new job, and the text of its answer."""
    body = chat(prompt, stream=stream, max_tokens=TOKENS, ignore_eos=True)
    answer = api.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-flotilla-job-id"], text_of(answer)


def text_of(answer: httpx.Response) -> str:
    """The text of a whole answer, or of a stream that ended with [DONE]."""
    if "text/event-stream" not in answer.headers["content-type"]:
        return str(answer.json()["choices"][0]["message"]["content"])
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]", events[-1]
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]
    return "".join(delta.get("content") or "" for delta in deltas)


def right_answers(gateway: Process) -> dict[str, str]:
    """What the fleet answers before anything is replaced."""
    with httpx.Client(base_url=gateway.url, timeout=60) as api:
        prompts = [f"prompt {n}" for n in range(PROMPTS)]
        return {prompt: ask(api, prompt, stream=False)[1] for prompt in prompts}


def answer_more(clients: list[Client]) -> None:
    """Returns when each client has got another answer, or something wrong."""
    before = [len(client.job_ids) for client in clients]

    def all_have() -> bool:
        return all(
            client.wrong or len(client.job_ids) > had
            for client, had in zip(clients, before, strict=True)
        )

    wait_for(all_have, "each client gets another answer")


def replace(old: Process, new: Process) -> None:
    """`new` is ready: end `old`."""
    old.terminate()
    status = old.popen.wait(60)
    assert status in {0, -signal.SIGTERM}, old.log.read_text()[-2000:]  # uvicorn's, of its signal
    assert new.ready()


def test_workers_are_replaced_and_no_client_sees_it(stack: Stack) -> None:
    gateway = stack.gateway(lease_s=15)
    workers = [stack.worker(**ENGINE, lease_s=15) for _ in range(3)]
    right = right_answers(gateway)
    clients = [Client(n, httpx.Client(base_url=gateway.url, timeout=60), right) for n in range(12)]
    for worker in workers:
        answer_more(clients)
        successor = stack.worker(**ENGINE, lease_s=15)
        wait_for(lambda old=worker: old.metric("flotilla_worker_slots", use="busy"), "it is busy")
        replace(worker, successor)
        assert worker.popen.returncode == 0
    answer_more(clients)
    for client in clients:
        client.stop()
    assert [client.wrong for client in clients] == [[]] * len(clients)
    ends = [end for client in clients for each in client.job_ids for end in outcomes(gateway, each)]
    assert set(ends) == {"handed_over", "completed"}


@pytest.fixture
def next_release(stack: Stack, tmp_path: Path) -> Iterator[Stack]:
    """Processes of a later release on the same Redis."""
    (tmp_path / "next").mkdir()
    successors = Stack(stack.redis_url, tmp_path / "next", launcher=NEXT_RELEASE)
    yield successors
    successors.close()


def test_gateways_and_workers_are_replaced_by_a_later_release(
    stack: Stack, next_release: Stack, redis_server: RedisServer
) -> None:
    with redis_server.client() as client:
        client.function_flush()
    gateways = [stack.gateway() for _ in range(2)]
    workers = [stack.worker(**ENGINE) for _ in range(2)]
    right = right_answers(gateways[0])
    successors = [next_release.gateway() for _ in gateways]
    urls = [gateway.url for gateway in (*gateways, *successors)]
    clients = []
    for n in range(6):
        transport = ResumingTransport([*urls[n % 4 :], *urls[: n % 4]])
        api = httpx.Client(base_url="http://flotilla", transport=transport, timeout=60)
        clients.append(Client(n, api, right))
    for worker in workers:
        replace(worker, next_release.worker(**ENGINE))
        answer_more(clients)
    for gateway, successor in zip(gateways, successors, strict=True):
        replace(gateway, successor)
        answer_more(clients)
    for client in clients:
        client.stop()
    assert [client.wrong for client in clients] == [[]] * len(clients)
    with redis_server.client() as client:
        assert len(client.function_list()) == 2, "each release has loaded its own scripts"
