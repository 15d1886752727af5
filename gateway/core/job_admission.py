"""Refuses jobs at the door that can't be done: no memory for them, no time, or a standing queue.

The other bounds, of what waits, are checked where jobs are queued (`submit.lua`); what is known of
them when one is reached, when there will be room again, is known here.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Final, NamedTuple

from gateway.core.fleet_view import FleetView
from shared.fleet.promised_room import PromisedRoom
from shared.fleet.standing_queue import StandingQueue
from shared.fleet.wait_estimate import WaitEstimate
from shared.job.errors import (
    DeadlineUnreachable,
    FlotillaError,
    Overloaded,
    TooManyWaiting,
)
from shared.job.job import NewJob
from shared.job.lanes import FLEX
from shared.platform.durations import duration
from shared.store.interface import StoreError
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.memory_monitor import MemoryMonitor
from shared.store.redis.next_place import NextPlace, next_place

_NO_BOUNDS: Final = (None, None, None)
_READ_AGAIN_S: Final = 0.25
_MOST_PLACES: Final = 1_000
_LEAST_S: Final = 1.0
"""Of `retry-after`."""
_MOST_PROMISED_S: Final = 120.0
"""A client that is told a longer time gets no promise of room."""


class _Place:
    """Where the jobs of a tenant wait in a lane, as of the last time that Redis was asked."""

    def __init__(self, target_s: float) -> None:
        self.standing = StandingQueue(target_s)
        self.read_at_s = float("-inf")
        self.since = 0
        """Jobs for which the answer was used since then."""
        self.reading: asyncio.Task[NextPlace] | None = None


class _Expected(NamedTuple):
    """What a new job has to expect."""

    place: _Place
    estimate: WaitEstimate

    @property
    def least_s(self) -> float | None:
        """The lower end of its wait; None: not known."""
        return self.estimate.range_s[0] if self.estimate.range_s else self.estimate.wait_s


class JobAdmission:
    """Of one gateway process."""

    def __init__(
        self, queue: JobQueue, fleet: FleetView, memory: MemoryMonitor, max_call_wait_s: float
    ) -> None:
        """`max_call_wait_s`: the target of a call's wait (StandingQueue); 0: no call is shed."""
        self._queue = queue
        self._fleet = fleet
        self.memory = memory
        self._max_call_wait_s = max_call_wait_s
        self._places: OrderedDict[tuple[str, str, str], _Place] = OrderedDict()
        self._promised = PromisedRoom()

    async def admit(self, job: NewJob, *, attached: bool = False) -> NewJob:
        """The job as it may be submitted: it waits for `max_wait_s` at most.

        `attached`: a call whose client waits for the answer. One whose idempotency key has made a
        job already is never refused, as it joins that. Raises RedisMemoryFull, DeadlineUnreachable,
        Overloaded, IdempotencyKeyReused, and StoreError.
        """
        sheds = attached and self._max_call_wait_s > 0 and job.lane != FLEX
        refusal: FlotillaError | None
        if not self.memory.take_job(job):
            refusal = self.memory.refusal(job.shard)
        elif not sheds and (job.queue_deadline_s, job.deadline_s, job.max_wait_s) == _NO_BOUNDS:
            return job
        else:
            refusal = await self._refusal(job, sheds=sheds)
        if refusal is not None and await self._queue.find_keyed(job) is None:
            raise refusal
        if job.max_wait_s is None:
            return job
        most_s = min(job.max_wait_s, job.queue_deadline_s or job.max_wait_s)
        return job._replace(queue_deadline_s=most_s)

    async def _refusal(self, job: NewJob, *, sheds: bool) -> FlotillaError | None:
        deadline_s = min(filter(None, (job.queue_deadline_s, job.deadline_s)), default=None)
        expected = await self._expected(job)
        wait_s, least_s = expected.estimate.wait_s, expected.least_s
        # What could still be met is not refused; who names a longest wait wants to know it now.
        for limit_s, expected_s in ((deadline_s, least_s), (job.max_wait_s, wait_s)):
            if limit_s is not None and expected_s is not None and expected_s > limit_s:
                return _unreachable(job, limit_s, expected_s)
        if sheds and expected.place.standing.seen(wait_s, time.monotonic()):
            assert wait_s is not None
            return Overloaded(
                f"Calls to {job.model!r} would wait for {duration(wait_s)}, and for longer than "
                f"{duration(self._max_call_wait_s)} all the time: this one is refused. Jobs of "
                "POST /jobs and of the lane flex are not."
            ).after(max(_LEAST_S, wait_s - self._max_call_wait_s))
        expected.place.since += 1
        return None

    async def with_time(self, job: NewJob, error: FlotillaError) -> FlotillaError:
        """The error of a job that was refused as too many wait, with the time until there is room.

        Each refused job gets a later time than those that were refused before it. Without an
        estimate the error keeps the `retry_after_s` of its class.
        """
        own = isinstance(error, TooManyWaiting)
        queue = (job.pool, job.lane, job.tenant) if own else (job.pool, job.lane)
        try:
            place = await self._read(job, self._place(job))
        except StoreError:
            return error
        now_s = time.monotonic()
        nth = 1 + self._promised.before(queue, now_s)
        position = place.better + (nth * place.turns if own else nth)
        wait_s = self._fleet.wait_estimate(job.pool, position).wait_s
        if wait_s is None:
            return error
        wait_s = max(_LEAST_S, wait_s)
        self._promised.promise(queue, now_s + min(_MOST_PROMISED_S, wait_s))
        error.args = (f"{error} There will be room in about {duration(wait_s)}.",)
        return error.after(wait_s)

    async def _expected(self, job: NewJob) -> _Expected:
        place = self._place(job)
        found = await self._read(job, place)
        if place.since < found.free:
            return _Expected(place, WaitEstimate(0.0, ""))
        if not self._fleet.has_workers(job.pool):  # the job has to wait, so that one is started
            return _Expected(place, WaitEstimate(None, ""))
        position = found.position(place.since - found.free)
        return _Expected(place, self._fleet.wait_estimate(job.pool, position, job.tenant))

    def _place(self, job: NewJob) -> _Place:
        key = job.pool, job.lane, job.tenant
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = _Place(self._max_call_wait_s)
        self._places.move_to_end(key)
        while len(self._places) > _MOST_PLACES:
            self._places.popitem(last=False)
        return place

    async def _read(self, job: NewJob, place: _Place) -> NextPlace:
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


def _unreachable(job: NewJob, limit_s: float, wait_s: float) -> DeadlineUnreachable:
    return DeadlineUnreachable(
        f"A job for {job.model!r} would wait for about {duration(wait_s)} now, and this one must "
        f"not wait for longer than {duration(limit_s)}."
    ).after(max(_LEAST_S, wait_s - limit_s))
