"""Submitting jobs: what comes while a call is on its way leaves together with the next one."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from shared.errors import QueueFull
from shared.job import NewJob, shard_of
from shared.metrics import GatewayMetrics
from shared.queue import JobQueue

_CALL_BYTES = 1 << 20


class _Waiting(NamedTuple):
    job: NewJob
    queued: asyncio.Future[None]
    patient: bool


class Submitter:
    """One gateway process' way into the queue."""

    def __init__(self, queue: JobQueue, max_depth: int, metrics: GatewayMetrics) -> None:
        self._queue = queue
        self._max_depth = max_depth
        self._metrics = metrics
        self._waiting: list[_Waiting] = []
        self._sending: asyncio.Task[None] | None = None

    def submit(self, job: NewJob, *, patient: bool = False) -> asyncio.Future[None]:
        """Done when the job is queued; its exception is QueueFull or one of redis' errors.

        `patient`: the caller hears of its job by its answer, so there is no hurry to be done.
        """
        queued: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(job, queued, patient))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        else:
            self._queue.read_on()
        return queued

    async def _send(self) -> None:
        try:
            while self._waiting:
                shards: dict[int, list[_Waiting]] = {}
                waiting, self._waiting = self._waiting, []
                for each in waiting:
                    shards.setdefault(shard_of(each.job.id) or 0, []).append(each)
                calls = [
                    self._call(shard, parcel)
                    for shard, batch in shards.items()
                    for parcel in _parcels(batch)
                ]
                await (calls[0] if len(calls) == 1 else asyncio.gather(*calls))
        finally:
            self._sending = None

    async def _call(self, shard: int, parcel: list[_Waiting]) -> None:
        try:
            depths = await self._queue.submit_all(
                shard,
                [each.job for each in parcel],
                self._max_depth,
                patient=all(each.patient for each in parcel),
            )
        except Exception as error:
            for each in parcel:
                if not each.queued.done():
                    each.queued.set_exception(error)
            return
        for each, depth in zip(parcel, depths, strict=True):
            if isinstance(depth, int):
                self._metrics.submitted.labels(each.job.pool, each.job.lane).inc()
            if each.queued.done():
                continue
            if isinstance(depth, QueueFull):
                each.queued.set_exception(depth)
            else:
                each.queued.set_result(None)


def _parcels(batch: list[_Waiting]) -> list[list[_Waiting]]:
    """In the same order; large bodies must not add up to more than Redis takes in one argument."""
    parcels: list[list[_Waiting]] = []
    size = _CALL_BYTES
    for each in batch:
        if size + len(each.job.body) > _CALL_BYTES:
            parcels.append([])
            size = 0
        parcels[-1].append(each)
        size += len(each.job.body)
    return parcels
