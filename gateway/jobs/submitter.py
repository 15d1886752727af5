"""Submitting jobs: what comes while a call is on its way leaves together with the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from shared.api.errors import QueueFull
from shared.platform.metrics import GatewayMetrics
from shared.platform.redis_client import RedisConnectionError
from shared.platform.servers import server_index
from shared.protocol.job import NewJob
from shared.queue.job_queue import JobQueue

_CALL_BYTES = 1 << 20


class _Waiting(NamedTuple):
    job: NewJob
    queued: asyncio.Future[None]
    on_error: Callable[[Exception], None] | None


class Submitter:
    """One gateway process' way into the queue."""

    def __init__(self, queue: JobQueue, max_depth: int, metrics: GatewayMetrics) -> None:
        self._queue = queue
        self._max_depth = max_depth
        self._metrics = metrics
        # By server: one that does not answer must not keep the others waiting.
        self._waiting: list[list[_Waiting]] = [[] for _ in range(len(queue.servers))]
        self._calls = [0] * len(queue.servers)  # under way
        self._loop = asyncio.get_running_loop()

    def submit(
        self,
        job: NewJob,
        *,
        on_error: Callable[[Exception], None] | None = None,
    ) -> asyncio.Future[None]:
        """Done when the job is queued; its exception is QueueFull or one of redis' errors, which
        `on_error` is told of.
        """
        queued: asyncio.Future[None] = self._loop.create_future()
        server = server_index(job.shard, len(self._calls))
        waiting = self._waiting[server]
        waiting.append(_Waiting(job, queued, on_error))
        if not self._calls[server] and len(waiting) == 1:
            self._loop.call_soon(self._send, server)  # with what else comes in this turn
        return queued

    def _send(self, server: int) -> None:
        shards: dict[int, list[_Waiting]] = {}
        waiting, self._waiting[server] = self._waiting[server], []
        for each in waiting:
            shards.setdefault(each.job.shard, []).append(each)
        for shard, together in shards.items():
            for batch in _batches(together):
                self._calls[server] += 1
                self._call(shard, batch)

    def _call(self, shard: int, batch: list[_Waiting], *, last: bool = False) -> None:
        jobs = [each.job for each in batch]
        try:
            reply = self._queue.start_submit(shard, jobs, self._max_depth)
        except Exception as error:  # others must not wait for ever behind what can't be sent
            reply = self._loop.create_future()
            reply.set_exception(error)
        reply.add_done_callback(partial(self._sent, shard, batch, last))

    def _sent(
        self, shard: int, batch: list[_Waiting], last: bool, reply: asyncio.Future[Any]
    ) -> None:
        error = asyncio.CancelledError() if reply.cancelled() else reply.exception()
        if isinstance(error, RedisConnectionError) and not last:
            # Lost under the call, perhaps with its reply: what is queued already stays as it is.
            self._call(shard, batch, last=True)
            return
        if error is not None:
            for each in batch:
                _refuse(each, error)
        else:
            self._tell(batch, reply.result())
        server = server_index(shard, len(self._calls))
        self._calls[server] -= 1
        if self._waiting[server] and not self._calls[server]:
            self._send(server)

    def _tell(self, batch: list[_Waiting], reply: Sequence[Any]) -> None:
        depths = self._queue.parse_submit([each.job for each in batch], reply)
        for each, depth in zip(batch, depths, strict=True):
            if isinstance(depth, int):
                self._metrics.submitted.of(each.job.pool, each.job.lane).inc()
            if isinstance(depth, QueueFull):
                _refuse(each, depth)
            elif not each.queued.done():
                each.queued.set_result(None)


def _refuse(waiting: _Waiting, error: BaseException) -> None:
    queued = waiting.queued
    if queued.done():
        return
    queued.set_exception(error)
    # A callback of the future would be called for every job that is queued, too.
    if waiting.on_error is not None and isinstance(error, Exception):
        queued.exception()  # it has been heard of
        waiting.on_error(error)


def _batches(batch: list[_Waiting]) -> list[list[_Waiting]]:
    """In the same order; large bodies must not add up to more than Redis takes in one argument."""
    batches: list[list[_Waiting]] = []
    size = _CALL_BYTES
    for each in batch:
        if size + len(each.job.body) > _CALL_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(each)
        size += len(each.job.body)
    return batches
