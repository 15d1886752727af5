"""The publisher: one call per step and shard, in order, repeated until Redis accepts it.

The queue is a stub that records calls and replies as the test tells it. What the publisher does on
a real queue is in tests/redis/test_publisher.py and tests/redis/test_step_log.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
from prometheus_client import CollectorRegistry

from shared.job.advertised_slots import SlotUpdate
from shared.job.replies import Fenced
from shared.job.result import INLINE_RESULT_BYTES, JobResult
from shared.job.states import JobEvent
from shared.platform.metrics.worker import WorkerMetrics
from shared.store.interface import (
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from shared.store.redis.scripts.emit import Step, parse_emit
from tests.unit.steps import SentOutput, parse_step
from tests.unit.worker.buffers import FENCE_TOKEN, RESULT, make_buffer
from worker.core import publisher as module
from worker.core.output_buffer import OutputBuffer
from worker.core.publisher import Publisher

# An error inside the publisher's callbacks would leave a test waiting.
pytestmark = pytest.mark.timeout(60)

DEADLINE_S = 30.0
FENCED = None
"""The reply to a call whose fencing token is not valid any more."""
Reply = dict[str, str] | Exception | None


HALF = INLINE_RESULT_BYTES // 4
"""Of what results may add up to in one call here: none of them is stored in pieces."""


def long_result(size: int) -> JobResult:
    return JobResult(JobEvent.COMPLETE, "", 200, "application/json", b"x" * size, 1, 2)


class Call(NamedTuple):
    """A recorded emit call."""

    shard: int
    fence_token: str
    step: Step
    again: bool
    update: SlotUpdate | None

    @property
    def outputs(self) -> dict[str, SentOutput]:
        """By job."""
        return parse_step(self.step).outputs


class RecordingQueue:
    """Records calls. Each waits until `open` is set and takes the next of `replies`, if any."""

    parse_emit = staticmethod(parse_emit)

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.calls: asyncio.Queue[Call] = asyncio.Queue()
        self.open = asyncio.Event()
        self.open.set()
        self.replies: list[Reply] = []

    def start_emit(
        self, shard: int, worker: str, fence_token: str, step: Step, update: SlotUpdate | None
    ) -> asyncio.Future[list[bytes] | None]:
        self.calls.put_nowait(Call(shard, fence_token, step, False, update))
        return asyncio.ensure_future(self._raw_reply(self.open))

    async def emit(
        self, shard: int, worker: str, fence_token: str, step: Step, *, repeated: bool
    ) -> dict[str, str]:
        self.calls.put_nowait(Call(shard, fence_token, step, repeated, None))
        reply = await self._reply(self.open)
        if reply is FENCED:
            raise Fenced
        return reply

    async def _reply(self, may_go: asyncio.Event) -> dict[str, str] | None:
        await may_go.wait()
        reply = self.replies.pop(0) if self.replies else {}
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def _raw_reply(self, may_go: asyncio.Event) -> list[bytes] | None:
        """As the script gives it."""
        lost = await self._reply(may_go)
        return None if lost is FENCED else [word.encode() for item in lost.items() for word in item]

    async def next(self) -> Call:
        async with asyncio.timeout(DEADLINE_S):
            return await self.calls.get()


class StubLease:
    """One fencing token for all shards; each renewal brings a new one for `held` buffers."""

    worker_id = "w-1"

    def __init__(self) -> None:
        self.token = FENCE_TOKEN
        self.held: list[OutputBuffer] = []
        self.failures: list[Exception] = []
        self.renewals = 0

    def fence_token(self, shard: int) -> str:
        return self.token

    def invalidate(self, shard: int, fence_token: str) -> None:
        if self.token == fence_token:
            self.token = ""

    async def renew(self, shard: int) -> None:
        self.renewals += 1
        if self.failures:
            raise self.failures.pop(0)
        self.token = f"renewed-{self.renewals}"
        for buffer in self.held:
            buffer.fence_token = self.token


class StubSlots:
    """Has an update for every call, and records what became of it."""

    def __init__(self) -> None:
        self.acks: list[tuple[int, int | None]] = []
        self.rejections: list[SlotUpdate] = []
        self.updates = 0

    def pending_update(self, shard: int) -> SlotUpdate:
        self.updates += 1
        return SlotUpdate("p", "w", shard, 0)

    def acked(self, shard: int, assigned: int | None = 0) -> None:
        self.acks.append((shard, assigned))

    def rejected(self, shard: int, update: SlotUpdate) -> None:
        self.rejections.append(update)


class Bench:
    """A running publisher."""

    def __init__(self, shards: int) -> None:
        self.queue = RecordingQueue(shards)
        self.lease = StubLease()
        self.slots = StubSlots()
        self.registry = CollectorRegistry()
        queue: Any = self.queue
        lease: Any = self.lease
        slots: Any = self.slots
        self.publisher = Publisher(queue, WorkerMetrics(self.registry), lease, slots)
        self.task = asyncio.create_task(self.publisher.run())

    def buffer(self, job_id: str = "a", shard: int = 0, **fields: Any) -> OutputBuffer:
        buffer = make_buffer(job_id, shard, self.publisher.notify, **fields)
        self.lease.held.append(buffer)
        return buffer

    def finish(self, buffer: OutputBuffer, result: JobResult = RESULT) -> asyncio.Task[str]:
        return asyncio.create_task(self.publisher.finish(buffer, result))

    def counted(self, name: str) -> float:
        return self.registry.get_sample_value(name) or 0.0


@pytest.fixture
def shards() -> int:
    return 1


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch, shards: int) -> AsyncIterator[Bench]:
    monkeypatch.setattr(module, "_RETRY_CAP_S", 0.001)
    monkeypatch.setattr(module, "_CALL_BYTES", 2 * HALF)
    bench = Bench(shards)
    yield bench
    bench.task.cancel()
    with contextlib.suppress(asyncio.CancelledError, StoreError, TypeError):
        await bench.task


# --- what leaves in one call ---


async def test_output_that_no_step_follows_is_sent_all_the_same(bench: Bench) -> None:
    bench.buffer("a").chunk(b"error")
    assert (await bench.queue.next()).outputs["a"].chunks == b"error"


# --- long results ---


async def test_long_results_are_spread_over_calls_in_order(bench: Bench) -> None:
    sizes = [HALF, HALF, 1, HALF, HALF, 0, 3 * HALF, 0]
    outcomes = [bench.finish(bench.buffer(str(i)), long_result(n)) for i, n in enumerate(sizes)]
    calls = [list((await bench.queue.next()).outputs) for _ in range(5)]
    assert calls == [["0", "1"], ["2", "3"], ["4", "5"], ["6"], ["7"]]
    assert await asyncio.gather(*outcomes) == ["ok"] * len(sizes)
    assert bench.queue.calls.empty()
    assert bench.counted("flotilla_flushes_total") == len(calls)


# --- failures ---


async def test_a_permanent_error_ends_the_publisher(bench: Bench) -> None:
    bench.queue.replies = [StoreRefused("WRONGTYPE")]
    bench.buffer().chunk(b"1")
    with pytest.raises(StoreRefused):
        await bench.task


async def test_output_that_can_not_be_packed_ends_the_publisher(bench: Bench) -> None:
    no_bytes: Any = object()
    bench.buffer().chunk(no_bytes)
    bench.publisher.on_step()
    with pytest.raises(TypeError):
        await bench.task


# --- updates of the advertised slots ---


async def test_an_update_whose_reply_is_lost_is_not_repeated(bench: Bench) -> None:
    bench.queue.replies = [StoreUnavailable("no reply")]
    bench.buffer().chunk(b"x")
    bench.publisher.on_step()
    calls = [await bench.queue.next() for _ in range(2)]
    assert [call.update for call in calls] == [SlotUpdate("p", "w", 0, 0), None]
    assert bench.slots.acks == [(0, None)]
