"""Submits jobs to the queue in batches.

They come from `job_factory.py` and go to `shared/store/queue.py`. Jobs that arrive while a call to
their shard is in flight are sent together in the next one. None is submitted before its frames can
arrive.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from gateway.core.relay import Relay
from shared.job.errors import FlotillaError, QueueFull, TooManyWaiting
from shared.job.job import NewJob
from shared.platform.metrics.gateway import GatewayMetrics
from shared.store.errors import StoreTimeout, StoreUnavailable
from shared.store.queue import JoinedJob, Queue

_SUBSCRIBE_S = 1.0
"""Jobs wait for so long until their frames can arrive: less than a stream waits before it begins,
so that the error has its own status."""
_CALL_BYTES = 1 << 20
"""Bytes of bodies in one call; a single larger body has a call of its own."""


WithTime = Callable[[NewJob, FlotillaError], Awaitable[FlotillaError]]


class _Waiting(NamedTuple):
    job: NewJob
    queued: asyncio.Future[str | None]
    on_error: Callable[[Exception], None] | None


class Submitter:
    """The submissions of one gateway process."""

    def __init__(
        self,
        queue: Queue,
        relay: Relay,
        max_depth: int,
        metrics: GatewayMetrics,
        max_depths: Mapping[str, int] | None = None,
        with_time: WithTime | None = None,
    ) -> None:
        """`max_depth`: jobs that may wait in a lane; `max_depths`: the same by pool.

        `with_time`: the error of a job that was refused as too many wait, with its `retry_after_s`.
        """
        self._queue = queue
        self._relay = relay
        self._max_depth = max_depth
        self._max_depths = max_depths or {}
        self._metrics = metrics
        self._with_time = with_time
        self.on_unused: Callable[[NewJob], None] = lambda job: None
        """Called with each job that the queue has refused, or that has joined another. After an
        error of the store it may be queued."""
        # By shard, so that one that does not answer delays only its own jobs.
        self._waiting: defaultdict[int, list[_Waiting]] = defaultdict(list)
        self._calls: Counter[int] = Counter()  # in flight
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def max_depth(self, pool: str) -> int:
        """How many jobs may wait in a lane of the pool, in one shard."""
        return self._max_depths.get(pool, self._max_depth)

    def submit(
        self,
        job: NewJob,
        *,
        on_error: Callable[[Exception], None] | None = None,
    ) -> asyncio.Future[str | None]:
        """A future that is done when the job is queued, or with the id of the job that it joins.

        It fails with QueueFull, QuotaExceeded, IdempotencyKeyReused or StoreError; `on_error` is
        called with that error.
        """
        queued: asyncio.Future[str | None] = self._loop.create_future()
        shard = job.shard
        waiting = self._waiting[shard]
        waiting.append(_Waiting(job, queued, on_error))
        if not self._calls[shard] and len(waiting) == 1:
            # Later, together with other jobs of this turn of the event loop.
            self._loop.call_soon(self._send, shard)
        return queued

    def _send(self, shard: int) -> None:
        if not self._relay.is_subscribed(shard):
            self._calls[shard] += 1  # what comes meanwhile waits, too
            self._start(self._send_once_subscribed(shard))
            return
        groups: dict[int, list[_Waiting]] = {}
        waiting, self._waiting[shard] = self._waiting[shard], []
        for each in waiting:
            max_depth = self.max_depth(each.job.pool) if self._max_depths else self._max_depth
            groups.setdefault(max_depth, []).append(each)
        for max_depth, together in groups.items():
            for batch in _batches(together):
                self._calls[shard] += 1
                self._call(shard, batch, max_depth)

    async def _send_once_subscribed(self, shard: int) -> None:
        try:
            async with asyncio.timeout(_SUBSCRIBE_S):
                await self._relay.subscribed(shard)
        except TimeoutError:
            waiting, self._waiting[shard] = self._waiting[shard], []
            for each in waiting:
                _fail(each, StoreUnavailable("not subscribed"))
        self._calls[shard] -= 1
        if self._waiting[shard]:
            self._send(shard)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _call(
        self, shard: int, batch: list[_Waiting], max_depth: int, *, last: bool = False
    ) -> None:
        jobs = [each.job for each in batch]
        try:
            reply = self._queue.submit(shard, jobs, max_depth)
        except Exception as error:  # a job that can't be packed must not block those after it
            reply = self._loop.create_future()
            reply.set_exception(error)
        reply.add_done_callback(partial(self._sent, shard, batch, max_depth, last))

    def _sent(
        self,
        shard: int,
        batch: list[_Waiting],
        max_depth: int,
        last: bool,
        reply: asyncio.Future[Any],
    ) -> None:
        try:
            self._resolve(batch, reply.result())
        except (Exception, asyncio.CancelledError) as error:
            lost = isinstance(error, StoreUnavailable) and not isinstance(error, StoreTimeout)
            if lost and not last:
                # The connection broke during the call. Jobs that are queued stay as they are.
                self._call(shard, batch, max_depth, last=True)
                return
            cancelled = StoreUnavailable("the call was cancelled")  # the callers were not
            for each in batch:
                _fail(each, error if isinstance(error, Exception) else cancelled)
        self._calls[shard] -= 1
        if self._waiting[shard] and not self._calls[shard]:
            self._send(shard)

    def _resolve(self, batch: list[_Waiting], reply: Sequence[Any]) -> None:
        replies = self._queue.parse_submit([each.job for each in batch], reply)
        for each, result in zip(batch, replies, strict=True):
            joined = None
            if isinstance(result, int):
                self._metrics.submitted.of(each.job.pool, each.job.lane).inc()
            elif isinstance(result, JoinedJob):
                joined = result.id
                self.on_unused(each.job)
            elif self._with_time and isinstance(result, QueueFull | TooManyWaiting):
                self._start(self._refuse(each, result, self._with_time))
                self.on_unused(each.job)
                continue
            else:
                _fail(each, result)
                self.on_unused(each.job)
            if not each.queued.done():
                each.queued.set_result(joined)

    async def _refuse(self, waiting: _Waiting, error: FlotillaError, with_time: WithTime) -> None:
        found = error
        try:
            found = await with_time(waiting.job, error)
        finally:  # whatever happens, the client gets an answer
            _fail(waiting, found)


def _fail(waiting: _Waiting, error: Exception) -> None:
    queued = waiting.queued
    if queued.done():
        return
    queued.set_exception(error)
    # A callback of the future would also be called for every job that was queued.
    if waiting.on_error is not None:
        queued.exception()  # mark it as retrieved
        waiting.on_error(error)


def _batches(batch: list[_Waiting]) -> list[list[_Waiting]]:
    """Split a batch, in order, so that the bodies fit into one argument of a Redis call."""
    batches: list[list[_Waiting]] = []
    size = _CALL_BYTES
    for each in batch:
        if size + len(each.job.body) > _CALL_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(each)
        size += len(each.job.body)
    return batches
