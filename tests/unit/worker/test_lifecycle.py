"""A worker's life on a real Redis: it exits when a background task fails or ends, or when its model
does not load in time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any
from unittest import mock

import pytest
from prometheus_client import CollectorRegistry

from tests.harness.settings import Settings
from worker.core import worker as worker_module
from worker.core.registration import Registration
from worker.core.worker import Worker
from worker.engines.simulated.engine import SimulatedEngine

DEADLINE_S = 150.0


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


def slow_worker(redis_url: str, start: Callable[[], Coroutine[Any, Any, None]]) -> Worker:
    """A worker whose engine starts like this, for 0.1 s at most."""
    worker = a_worker(redis_url, startup_timeout_s=0.1)
    worker.engine.start = start  # type: ignore[method-assign]
    return worker


async def test_a_worker_whose_model_does_not_load_in_time_exits(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(DEADLINE_S):
        assert await slow_worker(redis_url, asyncio.Event().wait).run() == 1  # type: ignore[arg-type]
    assert "did not load within 0.1 s" in caplog.text


async def test_a_library_that_times_out_while_the_model_loads_is_a_failure(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def time_out() -> None:
        raise TimeoutError("a library's own")

    async with asyncio.timeout(DEADLINE_S):
        assert await slow_worker(redis_url, time_out).run() == 1
    assert "a library's own" in caplog.text


def block_while_loading(redis_url: str) -> None:
    """A process whose event loop stands still while its model loads."""

    async def block() -> None:
        time.sleep(10 * DEADLINE_S)  # noqa: ASYNC251

    async def run() -> None:
        await slow_worker(redis_url, block).run()

    with mock.patch.object(worker_module, "_BLOCKED_S", 0.1):
        asyncio.run(run())


def test_a_blocked_event_loop_ends_the_process_that_loads_a_model(redis_url: str) -> None:
    code = f"from {__name__} import block_while_loading as b; b({redis_url!r})"
    ended = subprocess.run(
        [sys.executable, "-c", code], timeout=DEADLINE_S, capture_output=True, check=False
    )
    assert ended.returncode == 1
    assert b"Timeout" in ended.stderr
    assert b"in block" in ended.stderr
