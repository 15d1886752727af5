"""A worker's life on a real Redis: it exits when a background task fails or ends."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from shared.platform.settings import Settings
from worker.engines.simulated.engine import SimulatedEngine
from worker.run.lifecycle import Worker
from worker.run.registration import Registration

DEADLINE_S = 60.0


async def fail(_: Registration) -> None:
    raise ZeroDivisionError("a bug")


async def end_early(_: Registration) -> None:
    return


@pytest.mark.parametrize(
    ("heartbeats", "logged"), [(fail, "a bug"), (end_early, "the task end_early has ended")]
)
async def test_a_worker_exits_with_an_error_when_a_task_fails_or_ends(
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    heartbeats: object,
    logged: str,
) -> None:
    monkeypatch.setattr(Registration, "run_heartbeats", heartbeats)
    settings = Settings(redis_url=redis_url, engine="simulated", worker_port=0)
    worker = Worker(settings, SimulatedEngine(settings), CollectorRegistry())
    async with asyncio.timeout(DEADLINE_S):
        assert await worker.run() == 1
    assert "the worker failed" in caplog.text
    assert logged in caplog.text


async def test_a_worker_that_is_stopped_exits_without_an_error(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(redis_url=redis_url, engine="simulated", worker_port=0)
    worker = Worker(settings, SimulatedEngine(settings), CollectorRegistry())
    serving = asyncio.Event()
    started = Registration.started

    def started_and_serving(registration: Registration) -> None:
        started(registration)
        serving.set()

    monkeypatch.setattr(Registration, "started", started_and_serving)
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(DEADLINE_S):
        await serving.wait()
        worker.stop()
        assert await running == 0
