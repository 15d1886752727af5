"""The submitter: limits of pools, calls that are sent again, replies that can not be used."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gateway.core import submitter as module
from gateway.core.submitter import Submitter
from shared.job.errors import QueueFull
from shared.job.job import NewJob
from shared.platform.metrics.gateway import GatewayMetrics
from shared.store.connection import ScriptsMissing
from shared.store.errors import StoreTimeout, StoreUnavailable
from shared.store.queue import JoinedJob, SubmitReply

DEPTH = 7
UNSENDABLE = b"unsendable"


def job(name: int, shard: int = 0, body: bytes = b"{}") -> NewJob:
    return NewJob(
        id=f"job_{shard:03x}{name:024x}",
        tenant="t",
        pool="p",
        lane="default",
        model="m",
        endpoint="/e",
        body=body,
        stream=True,
        ttl_s=1.0,
    )


class Relay:
    """Is subscribed, or not."""

    def __init__(self) -> None:
        self.connected = asyncio.Event()
        self.connected.set()

    def is_subscribed(self, shard: int) -> bool:
        return self.connected.is_set()

    async def subscribed(self, shard: int) -> None:
        await self.connected.wait()


class Queue:
    """Records calls; each is answered with `full` or `error`."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, list[int]]] = []
        self.depths: list[int] = []
        self.full: set[int] = set()
        self.joins: dict[int, JoinedJob] = {}
        self.error: Exception | None = None
        self.fails_on = True
        """The error occurs again in the next call."""
        self.reply: Any = None
        """Of all calls, if it is not None."""

    def submit(
        self, shard: int, jobs: list[NewJob], max_depth: int
    ) -> asyncio.Future[list[SubmitReply]]:
        self.depths.append(max_depth)
        if any(each.body == UNSENDABLE for each in jobs):
            raise TypeError("can't be packed")
        return asyncio.ensure_future(self._call(shard, jobs))

    def parse_submit(self, jobs: list[NewJob], reply: list[SubmitReply]) -> list[SubmitReply]:
        assert len(jobs) == len(reply)
        return reply

    async def _call(self, shard: int, jobs: list[NewJob]) -> list[SubmitReply]:
        names = [int(each.id[7:], 16) for each in jobs]
        self.calls.append((shard, names))
        if self.error is not None:
            error, self.error = self.error, self.error if self.fails_on else None
            raise error
        if self.reply is not None:
            return self.reply  # type: ignore[no-any-return]
        return [
            QueueFull("full") if name in self.full else self.joins.get(name, 1) for name in names
        ]


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def relay() -> Relay:
    return Relay()


@pytest.fixture
async def submitter(queue: Any, relay: Any, registry: CollectorRegistry) -> Submitter:
    return Submitter(queue, relay, DEPTH, GatewayMetrics(registry))


async def test_a_pool_has_a_limit_of_its_own(queue: Queue, registry: CollectorRegistry) -> None:
    as_queue: Any = queue
    relay: Any = Relay()
    submitter = Submitter(as_queue, relay, DEPTH, GatewayMetrics(registry), {"small": 2})
    pools = ("p", "small", "small", "p", "small")
    await asyncio.gather(
        *(submitter.submit(job(n)._replace(pool=pool)) for n, pool in enumerate(pools))
    )
    assert sorted(zip(queue.depths, queue.calls, strict=True)) == [
        (2, (0, [1, 2, 4])),
        (DEPTH, (0, [0, 3])),
    ]
    assert submitter.max_depth("small") == 2
    assert submitter.max_depth("p") == DEPTH


async def test_what_was_taken_is_given_back_only_of_jobs_that_are_not_queued(
    submitter: Submitter, queue: Queue
) -> None:
    unused: list[NewJob] = []
    submitter.on_unused = unused.append
    queue.full, queue.joins[2] = {1}, JoinedJob("job_earlier")
    await asyncio.gather(*(submitter.submit(job(n)) for n in range(3)), return_exceptions=True)
    assert unused == [job(1), job(2)]
    queue.error = StoreTimeout("no answer")  # the job may be queued
    await asyncio.gather(submitter.submit(job(3)), return_exceptions=True)
    assert unused == [job(1), job(2)]


async def test_large_bodies_are_spread_over_calls(
    submitter: Submitter, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CALL_BYTES", 10)
    bodies = [b"x" * size for size in (4, 4, 4, 20, 1)]
    await asyncio.gather(*(submitter.submit(job(n, body=b)) for n, b in enumerate(bodies)))
    assert sorted(names for _, names in queue.calls) == [[0, 1], [2], [3], [4]]


async def test_a_redis_that_has_forgotten_the_scripts_is_called_again(
    submitter: Submitter, queue: Queue
) -> None:
    queue.error, queue.fails_on = ScriptsMissing("NOSCRIPT"), False
    await submitter.submit(job(0))
    assert queue.calls == [(0, [0])] * 2


async def test_a_call_whose_connection_breaks_is_sent_again_once(
    submitter: Submitter, queue: Queue
) -> None:
    queue.error, queue.fails_on = StoreUnavailable("closed by server"), False
    await submitter.submit(job(0))
    assert queue.calls == [(0, [0])] * 2
    queue.error, queue.fails_on = StoreUnavailable("connection refused"), True
    with pytest.raises(StoreUnavailable):
        await submitter.submit(job(1))
    assert queue.calls[2:] == [(0, [1])] * 2


async def test_a_call_that_is_not_answered_is_not_sent_again(
    submitter: Submitter, queue: Queue
) -> None:
    queue.error = StoreTimeout("no reply")
    with pytest.raises(StoreTimeout):
        await submitter.submit(job(0))
    assert queue.calls == [(0, [0])]


async def test_a_job_that_can_not_be_packed_fails_alone(submitter: Submitter, queue: Queue) -> None:
    with pytest.raises(TypeError):
        await submitter.submit(job(0, body=UNSENDABLE))
    await submitter.submit(job(1))
    assert queue.calls == [(0, [1])]


@pytest.mark.parametrize("reply", [[], [1, 1, 1], 7, [1, "nonsense"]])
async def test_a_malformed_reply_fails_its_jobs_and_the_next_call_is_sent(
    submitter: Submitter, queue: Queue, reply: Any
) -> None:
    queue.reply = reply
    calls = asyncio.gather(*(submitter.submit(job(n)) for n in range(2)), return_exceptions=True)
    assert isinstance((await asyncio.wait_for(calls, 5))[1], Exception)
    queue.reply = None
    await asyncio.wait_for(submitter.submit(job(2)), 5)


async def test_jobs_wait_until_their_frames_can_arrive(
    submitter: Submitter, queue: Queue, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay.connected.clear()
    first = submitter.submit(job(1))
    await asyncio.sleep(0)
    second = submitter.submit(job(2))
    await asyncio.sleep(0)
    assert not queue.calls
    relay.connected.set()
    await asyncio.gather(first, second)
    assert queue.calls == [(0, [1, 2])]
    relay.connected.clear()
    monkeypatch.setattr(module, "_SUBSCRIBE_S", 0.0)
    with pytest.raises(StoreUnavailable):
        await submitter.submit(job(3))
