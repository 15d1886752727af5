"""A worker's life on a real Redis: it exits when a background task fails or ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from shared.job.job import LeasedJob
from shared.store.queue import Queue
from tests.harness.settings import Settings
from tests.store.conftest import submit
from tests.redis.worker_loops import chat
from worker.core import stalls
from worker.core.lifecycle import Worker
from worker.core.loop import WorkerLoop
from worker.core.queue_consumer import QueueConsumer
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


def claims_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_: QueueConsumer, count: int, *, left_over: int = 0) -> list[LeasedJob]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(QueueConsumer, "claim", never)


def output_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(queue: Queue, *_: object) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    monkeypatch.setattr(Queue, "start_emit", never)


@pytest.mark.parametrize("wedge", [claims_hang, output_hangs])
async def test_a_worker_with_a_loop_that_stands_still_gives_its_jobs_up_and_exits(
    redis_url: str,
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wedge: Callable[[pytest.MonkeyPatch], None],
) -> None:
    monkeypatch.setattr(stalls, "STALL_S", 2.0)
    monkeypatch.setattr("shared.store.redis.claim_connection.BLOCK_S", 0.5)
    wedge(monkeypatch)
    worker = a_worker(redis_url, lease_s=1.0, drain_deadline_s=0.2)
    running = asyncio.create_task(worker.run())
    job = await submit(queue, pool="simulated", body=chat(8000, ignore_eos=True), stream=False)
    async with asyncio.timeout(DEADLINE_S):
        assert await running == 1
    assert "this worker ends" in caplog.text
    shown = await queue.get(job.id)
    assert shown is not None
    assert shown.state == "queued"


async def test_a_worker_that_is_stopped_while_its_claims_stand_still_exits(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    claiming = asyncio.Event()

    async def never(_: QueueConsumer, count: int, *, left_over: int = 0) -> list[LeasedJob]:
        claiming.set()
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(stalls, "STALL_S", 2.0)
    monkeypatch.setattr(QueueConsumer, "claim", never)
    worker = a_worker(redis_url)
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(DEADLINE_S):
        await claiming.wait()
        worker.stop()
        assert await running == 1
    assert "the claims on Redis server 0 have stood still" in caplog.text
