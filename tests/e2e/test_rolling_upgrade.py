"""A fleet is replaced, process by process and under load, by a later release of the same format."""

from __future__ import annotations

import re
import signal
import sys
import threading
import time
from pathlib import Path

import httpx
import openai

from shared.client.transport import ResumingTransport
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for

RELEASE = Path(__file__).parents[1] / "harness/stand_ins/next_release.py"
NEXT_RELEASE = (sys.executable, str(RELEASE))
FAST = {"sim_step_ms": 20, "sim_step_us_per_seq": 0, "sim_max_num_seqs": 32}
CLIENTS = 6
TOKENS = 60


class Client(threading.Thread):
    """Calls in a loop, streamed and whole in turn, until `stop`; collects what was not right."""

    def __init__(self, number: int, urls: list[str], right: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self.wrong: list[str] = []
        self.answers = 0
        self._number, self._right = number, right
        self._ending = threading.Event()
        transport = ResumingTransport(urls)
        self._api = openai.OpenAI(
            base_url=f"{urls[0]}/v1",
            api_key="none",
            max_retries=0,
            timeout=60,
            http_client=httpx.Client(transport=transport),
        )
        self.start()

    def stop(self) -> None:
        self._ending.set()
        self.join(60)
        self._api.close()
        assert not self.is_alive(), "a client hangs"

    def run(self) -> None:
        while not self._ending.is_set():
            prompt = f"prompt {(self._number + self.answers) % len(self._right)}"
            try:
                text = answer(self._api, prompt, stream=self.answers % 2 == 0)
            except Exception as error:
                self.wrong.append(repr(error))
            else:
                if text != self._right[prompt]:
                    self.wrong.append(f"{prompt}: {text!r}")
            self.answers += 1


def answer(api: openai.OpenAI, prompt: str, *, stream: bool) -> str:
    body = {
        "model": "simulated",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": TOKENS,
        "extra_body": {"ignore_eos": True},
    }
    if not stream:
        return api.chat.completions.create(**body).choices[0].message.content  # type: ignore[no-any-return,call-overload]
    parts = []
    for chunk in api.chat.completions.create(**body, stream=True):  # type: ignore[call-overload]
        parts += [choice.delta.content or "" for choice in chunk.choices]
    return "".join(parts)


def replace(old: Process, new: Process) -> None:
    """`new` is ready: end `old`, as a rolling upgrade does."""
    old.terminate()
    wait_for(lambda: old.popen.poll() is not None, f"{old.name} has ended")
    assert old.popen.returncode in {0, -signal.SIGTERM}  # uvicorn ends by the signal that it got
    assert new.ready()


def test_nothing_fails_and_nothing_is_cut(own_redis: RedisServer, tmp_path: Path) -> None:
    before, after = Stack(own_redis.url, tmp_path / "before"), Stack(own_redis.url, tmp_path / "a")
    for stack in (before, after):
        stack.folder.mkdir()
    after.launcher = NEXT_RELEASE
    clients: list[Client] = []
    try:
        gateways = [before.gateway() for _ in range(2)]
        workers = [before.worker(**FAST) for _ in range(3)]
        with openai.OpenAI(base_url=f"{gateways[0].url}/v1", api_key="none") as api:
            right = {f"prompt {n}": answer(api, f"prompt {n}", stream=False) for n in range(8)}
        successors = [after.gateway() for _ in gateways]
        urls = [gateway.url for gateway in (*gateways, *successors)]
        clients = [Client(n, [*urls[n % 4 :], *urls[: n % 4]], right) for n in range(CLIENTS)]
        for worker in workers:
            replace(worker, after.worker(**FAST))
            time.sleep(0.5)
        for gateway, successor in zip(gateways, successors, strict=True):
            replace(gateway, successor)
        for client in clients:
            client.stop()
    finally:
        for stack in (before, after):
            stack.close()
    assert [client.wrong for client in clients] == [[]] * CLIENTS
    assert all(client.answers > 2 for client in clients)
    with own_redis.client() as redis:
        loaded = re.findall(r"flotilla_[0-9a-f]{12}'", str(redis.function_list()))
        assert len(set(loaded)) == 2, "each release has loaded its own scripts"
