"""What a task has started on the event loop goes on between two tasks."""

from __future__ import annotations

import asyncio

import pytest

from gateway.maintenance.loop_thread import LoopThread
from tests.harness.waiting import wait_for


def test_work_goes_on_between_two_calls() -> None:
    loop, steps = LoopThread(), list[int]()
    started: list[asyncio.Task[None]] = []

    async def step() -> None:
        while len(steps) < 5:
            steps.append(1)
            await asyncio.sleep(0)

    async def begin() -> str:
        started.append(asyncio.create_task(step()))
        return "begun"

    assert loop.run(begin()) == "begun"
    wait_for(lambda: len(steps) == 5, "five steps")
    loop.close()


def test_an_error_comes_back() -> None:
    loop = LoopThread()

    async def fail() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        loop.run(fail())
    loop.close()
