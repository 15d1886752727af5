"""A worker's life on a real Redis: it exits when a background task fails or ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.harness.settings import Settings
from worker.core.lifecycle import Worker
from worker.core.loop import WorkerLoop
from worker.core.registration import Registration
from worker.engines.simulated.engine import SimulatedEngine

DEADLINE_S = 60.0


def a_worker(redis_url: str, **settings: Any) -> Worker:
    known = Settings(redis_url=redis_url, engine="simulated", worker_port=0, **settings)
    return Worker(known, known.described.own, SimulatedEngine(known), CollectorRegistry())


async def fail(_: Registration) -> None:
    raise ZeroDivisionError("a bug")


async def end_early(_: Registration) -> None:
    return


async def cancel(_: Registration) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("heartbeats", [fail, end_early, cancel])
async def test_a_worker_exits_with_an_error_when_a_task_fails_or_ends(
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    heartbeats: Callable[[Registration], Coroutine[Any, Any, None]],
) -> None:
    monkeypatch.setattr(Registration, "run_heartbeats", heartbeats)
    worker = a_worker(redis_url)
    async with asyncio.timeout(DEADLINE_S):
        assert await worker.run() == 1
    assert "the worker failed" in caplog.text
    ended = f"the task {heartbeats.__name__} has ended"
    assert ("a bug" if heartbeats is fail else ended) in caplog.text


async def test_a_worker_that_is_stopped_exits_without_an_error(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = a_worker(redis_url)
    serving = asyncio.Event()
    started = Registration.started

    def started_and_serving(registration: Registration, loop: WorkerLoop) -> None:
        started(registration, loop)
        serving.set()

    monkeypatch.setattr(Registration, "started", started_and_serving)
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(DEADLINE_S):
        await serving.wait()
        worker.stop()
        assert await running == 0
