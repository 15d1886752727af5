"""Real vLLM over two "machines", both here: tensor parallelism by vLLM's `mp` with two nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.harness.client import http
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer, free_port
from tests.harness.waiting import wait_for
from worker.demo import MODEL_DIR
from worker.engines.vllm.args import DEFAULTS, DEMO_ARGS, DEMO_DEFAULTS

pytestmark = pytest.mark.vllm
MODEL = "flotilla-demo"
_ARGS = "--dtype float32 --max-num-seqs 8"
_LOADED_S = 600.0
_NOTICED_S = 15.0
"""The limit is 10 s; ends of processes on a busy machine take some more."""
_LONG = 600
"""Tokens of a job that computes until its engine is killed."""


@dataclass
class Group:
    """A worker whose engine has a second node, run by `vllm serve --headless`."""

    head: Process
    node: Process


@dataclass
class Nodes:
    """A gateway, and workers that the tests start."""

    stack: Stack
    gateway: Process

    def group(self, worker_id: str) -> Group:
        """Start a worker and the node of its engine; returns when it is ready."""
        args = f"{_ARGS} --tensor-parallel-size 2 --nnodes 2 --master-port {free_port()}"
        node = self.stack.start(
            *("tests.harness.vllm_cli", "serve", str(MODEL_DIR), *DEMO_ARGS.split()),
            *("--served-model-name", MODEL, *args.split(), "--headless", "--node-rank", "1"),
            variables=DEFAULTS | DEMO_DEFAULTS,
        )
        head = self.worker(worker_id, args)
        return Group(head, node)

    def worker(self, worker_id: str, args: str = _ARGS) -> Process:
        """Start a worker; returns when it is ready."""
        worker = self.stack.worker(
            wait=False, worker_id=worker_id, engine="vllm", engine_args=args, lease_s=15
        )
        wait_for(worker.ready, f"{worker_id} is ready", _LOADED_S)
        return worker

    def answer(self, max_tokens: int = 24) -> Any:
        """The choices of a chat without chance."""
        body = {**_chat(max_tokens), "logprobs": True}
        answer = http.post(f"{self.gateway.url}/v1/chat/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]

    def job(self, job_id: str) -> Any:
        """A job as it is now."""
        return http.get(f"{self.gateway.url}/jobs/{job_id}").json()


def _chat(max_tokens: int) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Tell me about boats."}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    folder: Path = tmp_path_factory.mktemp("nodes")
    redis = RedisServer(folder)
    redis.start()
    stack = Stack(redis.url, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setenv("VLLM_HOST_IP", "127.0.0.1")
        yield Nodes(stack, stack.gateway(lease_s=15))
    stack.close()
    redis.stop()


def test_two_nodes_answer_as_one_and_a_lost_node_loses_nothing(nodes: Nodes) -> None:
    group = nodes.group("w-two")
    of_two = nodes.answer()

    body = {"body": {**_chat(_LONG), "stream": True}}
    answer = http.post(f"{nodes.gateway.url}/jobs", json=body)
    assert answer.status_code == 202, answer.text
    job_id = answer.json()["id"]
    wait_for(lambda: nodes.job(job_id).get("text"), "the group computes")
    group.node.kill()
    assert group.head.popen.wait(60) == 1
    assert nodes.job(job_id)["state"] == "queued"
    nodes.worker("w-one")
    wait_for(lambda: nodes.job(job_id)["state"] not in {"queued", "in_progress"}, "it ends", 120)
    job = nodes.job(job_id)
    assert job["state"] == "completed", job
    assert [each["worker"] for each in job["attempts"]] == ["w-two", "w-one"]
    assert job["usage"]["completion_tokens"] == _LONG

    of_one = nodes.answer()
    assert of_one["message"] == of_two["message"]
    assert [each["token"] for each in of_one["logprobs"]["content"]] == [
        each["token"] for each in of_two["logprobs"]["content"]
    ]
    assert nodes.answer(_LONG)["message"]["content"] == job["text"]


def test_a_lost_node_of_an_idle_engine_is_noticed(nodes: Nodes) -> None:
    group = nodes.group("w-idle")
    group.node.kill()
    assert group.head.popen.wait(_NOTICED_S) == 1
    assert "a machine of the engine does not answer" in group.head.log.read_text()
