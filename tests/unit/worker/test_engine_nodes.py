"""An engine over several machines: what is refused, and how its end is noticed."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
import yaml

from gateway.cli.main import app
from shared.platform.settings import PREFIX, declared
from tests.harness.waiting import wait_for
from worker import engine_node
from worker.engines.vllm import group_health
from worker.engines.vllm.arguments import node_problems

EXAMPLE = Path(__file__).parents[3] / "compose/kubernetes/examples/leader-worker-set.yaml"


@pytest.mark.parametrize(
    ("given", "node_rank", "part"),
    [
        ({}, 0, ""),
        ({"nnodes": 2}, 0, ""),
        ({"nnodes": 2, "node_rank": 1}, 1, ""),
        ({"data_parallel_size": None}, 0, ""),
        ({"data_parallel_size": 2}, 0, "start a worker for each"),
        ({"nnodes": 2, "node_rank": 1}, 0, "flotilla engine-node --node-rank 1"),
        ({"node_rank": 1}, 1, "needs --nnodes above it, which is 1"),
        ({"nnodes": 2, "node_rank": 2}, 2, "needs --nnodes above it, which is 2"),
    ],
)
def test_which_arguments_are_refused(given: dict[str, Any], node_rank: int, part: str) -> None:
    args = SimpleNamespace(**{"data_parallel_size": 1, "node_rank": 0, "nnodes": 1, **given})
    problems = node_problems(args, node_rank)
    assert len(problems) == bool(part)
    assert part in "".join(problems)


@pytest.mark.parametrize(
    ("nodes", "backend", "several"),
    [(1, "mp", False), (1, None, False), (2, "mp", True), (1, "ray", True)],
)
def test_which_engines_may_be_on_several_machines(
    nodes: int, backend: str | None, several: bool
) -> None:
    config = SimpleNamespace(nnodes=nodes, distributed_executor_backend=backend)
    assert group_health.spans_machines(config) is several


class Group:
    """An engine that answers its checks in turn: an error is raised."""

    def __init__(self, *answers: Exception | None, unfinished: tuple[int, ...] = ()) -> None:
        self.answers = list(answers)
        self.unfinished = list(unfinished)
        self.asked = 0
        self.output_processor = self  # AsyncLLM itself has no such method in 0.24

    def get_num_unfinished_requests(self) -> int:
        return self.unfinished.pop(0) if self.unfinished else 0

    async def collective_rpc(self, method: str, timeout: float) -> list[None]:
        assert method == "check_health"
        assert timeout < group_health.EVERY_S + 5
        self.asked += 1
        if answer := self.answers.pop(0):
            raise answer
        return [None, None]


async def broken(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_health, "EVERY_S", 0.0)
    await asyncio.wait_for(group_health.until_broken(group), 10)


async def test_an_idle_engine_is_asked_until_a_machine_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group(None, None, TimeoutError())
    await broken(group, monkeypatch)
    assert group.asked == 3


async def test_an_engine_with_requests_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(RuntimeError("Executor failed."), unfinished=(1, 5))
    await broken(group, monkeypatch)
    assert (group.asked, group.unfinished) == (1, [])


async def test_a_question_that_waits_for_a_step_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group(TimeoutError(), TimeoutError(), unfinished=(0, 1))
    await broken(group, monkeypatch)
    assert group.asked == 2


async def test_a_machine_that_does_not_answer_is_lost_though_a_request_came_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group(Exception("RPC call to check_health timed out."), unfinished=(0, 1))
    await broken(group, monkeypatch)
    assert group.asked == 1


def test_a_node_ends_with_its_head_and_waits_for_it_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = threading.Event()

    def end(status: int) -> None:
        assert status == 1
        ended.set()

    monkeypatch.setattr(engine_node, "_EVERY_S", 0.01)
    monkeypatch.setattr(os, "_exit", end)
    head = socket.socket()
    head.bind(("127.0.0.1", 0))  # nothing listens there yet
    address = head.getsockname()
    threading.Thread(target=engine_node._end_with, args=(address,), daemon=True).start()
    assert not ended.wait(0.2), "a head that is not there yet has not ended"
    head.listen()
    head.accept()[0].close()
    assert not ended.is_set()
    head.close()
    wait_for(ended.is_set, "the node has ended")


def test_the_example_starts_the_programs_with_settings_that_exist() -> None:
    objects = list(yaml.safe_load_all(EXAMPLE.read_text()))
    group = objects[0]["spec"]["leaderWorkerTemplate"]
    names = {PREFIX + name.upper() for name in declared("worker")[0].model_fields}
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert group["size"] == 2
    for part, program in (("leaderTemplate", "worker"), ("workerTemplate", "engine-node")):
        (container,) = group[part]["spec"]["containers"]
        words = container["args"][0].split()
        assert words[:3] == ["exec", "flotilla", program]
        assert program in commands
        given = {each["name"] for each in container["env"]}
        assert {name for name in given if name.startswith(PREFIX)} <= names
        assert "$ENGINE_ARGS --master-addr $LWS_LEADER_ADDRESS" in container["args"][0]
        assert "ENGINE_ARGS" in given
        assert group[part]["spec"]["securityContext"]["runAsNonRoot"] is True
    follower = group["workerTemplate"]["spec"]["containers"][0]
    assert not any("REDIS" in each["name"] for each in follower["env"])
