"""The publisher: how long results are spread over calls, and what ends it.

What it does on a real queue is in tests/redis/test_publisher.py and tests/redis/test_step_log.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from shared.job.result import INLINE_RESULT_BYTES, JobResult
from shared.job.states import JobEvent
from shared.store.interface import StoreError, StoreRefused
from shared.store.redis.scripts.emit import Step
from tests.unit.steps import parse_step
from tests.unit.worker.bench import Bench
from tests.unit.worker.buffers import make_buffer
from worker.core import publisher as module
from worker.core.output_buffer import OutputBuffer

# An error inside the publisher's callbacks would leave a test waiting.
pytestmark = pytest.mark.timeout(60)

HALF = INLINE_RESULT_BYTES // 4
"""Of what results may add up to in one call here: none of them is stored in pieces."""


def long_result(size: int) -> JobResult:
    return JobResult(JobEvent.COMPLETE, "", 200, "application/json", b"x" * size, 1, 2)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(module, "_CALL_BYTES", 2 * HALF)
    bench = Bench(SimpleNamespace())
    yield bench
    with contextlib.suppress(StoreError, TypeError):
        await bench.close()


def buffer_of(bench: Bench, job_id: str) -> OutputBuffer:
    return make_buffer(job_id, 0, bench.publisher.notify, fence_token="e-1")


async def test_long_results_are_spread_over_calls_in_order(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []
    start_emit = bench.queue.start_emit

    def record(shard: int, worker: str, fence_token: str, step: Step, update: object) -> Any:
        calls.append(list(parse_step(step).outputs))
        return start_emit(shard, worker, fence_token, step, update)

    monkeypatch.setattr(bench.queue, "start_emit", record)
    sizes = [HALF, HALF, 1, HALF, HALF, 0, 3 * HALF, 0]
    outcomes = [
        bench.publisher.finish(buffer_of(bench, str(i)), long_result(size))
        for i, size in enumerate(sizes)
    ]
    assert await asyncio.gather(*outcomes) == ["ok"] * len(sizes)
    assert calls == [["0", "1"], ["2", "3"], ["4", "5"], ["6"], ["7"]]


async def test_a_permanent_error_ends_the_publisher(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> asyncio.Future[list[bytes]]:
        reply: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        reply.set_exception(StoreRefused("WRONGTYPE"))
        return reply

    monkeypatch.setattr(bench.queue, "start_emit", refuse)
    buffer_of(bench, "a").chunk(b"1")  # no step of the engine follows it: it is sent all the same
    with pytest.raises(StoreRefused):
        await bench.task


async def test_output_that_can_not_be_packed_ends_the_publisher(bench: Bench) -> None:
    no_bytes: Any = object()
    buffer_of(bench, "a").chunk(no_bytes)
    bench.publisher.on_step()
    with pytest.raises(TypeError):
        await bench.task
