"""Refuses jobs at the door that can't be done in time.

The other bounds, of what waits, are checked where jobs are queued (`submit.lua`); what is known of
them when one is reached, when there will be room again, is known here.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Final

from gateway.core.fleet_view import FleetView
from shared.job.errors import DeadlineUnreachable, FlotillaError, TooManyWaiting
from shared.job.job import NewJob
from shared.platform.durations import duration
from shared.store.errors import StoreError
from shared.store.queue import Queue
from shared.store.views import QueuePlace, next_place

_READ_AGAIN_S: Final = 0.25
_MOST_PLACES: Final = 1_000
_LEAST_S: Final = 1.0
"""Of `retry-after`."""


class _Place:
    """Where the jobs of a tenant wait in a lane, as of the last time that Redis was asked."""

    def __init__(self) -> None:
        self.read_at_s = float("-inf")
        self.since = 0
        """Jobs for which the answer was used since then."""
        self.reading: asyncio.Task[QueuePlace] | None = None


class JobAdmission:
    """Of one gateway process."""

    def __init__(self, queue: Queue, fleet: FleetView) -> None:
        self._queue = queue
        self._fleet = fleet
        self._places: OrderedDict[tuple[str, str, str], _Place] = OrderedDict()

    async def admit(self, job: NewJob) -> NewJob:
        """The job as it may be submitted: it waits for `max_wait_s` at most.

        One whose idempotency key has made a job already is never refused, as it joins that. Raises
        DeadlineUnreachable, IdempotencyKeyReused, and StoreError.
        """
        limits_s = (job.queue_deadline_s, job.deadline_s, job.max_wait_s)
        limit_s = min((each for each in limits_s if each is not None), default=None)
        refusal = None if limit_s is None else await self._unreachable(job, limit_s)
        if refusal is not None and await self._queue.find_keyed(job) is None:
            raise refusal
        if job.max_wait_s is None:
            return job
        most_s = min(job.max_wait_s, job.queue_deadline_s or job.max_wait_s)
        return job._replace(queue_deadline_s=most_s)

    async def _unreachable(self, job: NewJob, limit_s: float) -> DeadlineUnreachable | None:
        place = self._place(job)
        wait_s = await self._wait_s(job, place)
        if wait_s is not None and wait_s > limit_s:
            return DeadlineUnreachable(
                f"A job for {job.model!r} would wait for about {duration(wait_s)} now, and this "
                f"one must not wait for longer than {duration(limit_s)}."
            ).after(max(_LEAST_S, wait_s - limit_s))
        place.since += 1
        return None

    async def with_time(self, job: NewJob, error: FlotillaError) -> FlotillaError:
        """The error of a job that was refused as too many wait, with the time until there is room.

        Without an estimate the error keeps the `retry_after_s` of its class.
        """
        try:
            place = await self._read(job, self._place(job))
        except StoreError:
            return error
        # As the first one in its lane, or as its tenant's first one.
        turns = place.tenants if isinstance(error, TooManyWaiting) else 1
        position = place.better + turns
        wait_s = self._fleet.wait_estimate(job.pool, position).wait_s
        if wait_s is None:
            return error
        wait_s = max(_LEAST_S, wait_s)
        error.args = (f"{error} There will be room in about {duration(wait_s)}.",)
        return error.after(wait_s)

    async def _wait_s(self, job: NewJob, place: _Place) -> float | None:
        """How long a new job waits; None: not known."""
        found = await self._read(job, place)
        free = 0 if found.others else found.free
        if place.since < free:
            return 0.0
        if not self._fleet.has_workers(job.pool):  # the job has to wait, so that one is started
            return None
        position = found.behind(place.since - free).position
        return self._fleet.wait_estimate(job.pool, position).wait_s

    def _place(self, job: NewJob) -> _Place:
        key = job.pool, job.lane, job.tenant
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = _Place()
        self._places.move_to_end(key)
        while len(self._places) > _MOST_PLACES:
            self._places.popitem(last=False)
        return place

    async def _read(self, job: NewJob, place: _Place) -> QueuePlace:
        """Ask Redis, unless it was asked just now. All who wait for the answer share it."""
        now_s = time.monotonic()
        if place.reading is None or (
            place.reading.done() and now_s > place.read_at_s + _READ_AGAIN_S
        ):
            place.read_at_s, place.since = now_s, 0
            place.reading = asyncio.create_task(
                next_place(self._queue, job.pool, job.lane, job.tenant)
            )
        return await asyncio.shield(place.reading)
