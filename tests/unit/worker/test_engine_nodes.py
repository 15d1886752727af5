"""An engine over several machines: what is refused, and how its end is noticed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from worker.engines.vllm import group_health
from worker.engines.vllm.arguments import node_problems


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({}, ""),
        ({"nnodes": 2}, ""),
        ({"data_parallel_size": None}, ""),
        ({"data_parallel_size": 2}, "start a worker for each"),
        ({"nnodes": 2, "node_rank": 1}, "vllm serve --headless --node-rank 1"),
    ],
)
def test_which_arguments_are_refused(given: dict[str, Any], part: str) -> None:
    args = SimpleNamespace(**{"data_parallel_size": 1, "node_rank": 0, "nnodes": 1, **given})
    problems = node_problems(args)
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
