"""Isolation: a worker runs the suspects of its pool alone, one after another.

A suspect may have ended its workers, and with them all jobs that ran beside it. One worker of a
pool at a time has the right to run suspects. It claims nothing else, ends what it runs, takes a
suspect, and the next one when that has ended or has made output. `claim_policy.py` decides each
step. As long as no claim finds waiting suspects, nothing runs here and Redis gets no calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from shared.job.advertised_slots import UNKNOWN
from shared.job.job import LeasedJob
from shared.job.replies import AcquiredSuspect, IsolationStage
from shared.platform.logs import RareWarning
from shared.store.interface import StoreError
from shared.store.redis import suspects
from worker.core.claim_policy import SuspectSnapshot, SuspectStep, next_suspect_step
from worker.core.membership import Membership
from worker.core.runs import Runs
from worker.core.slot_adverts import AdvertisedSlots
from worker.core.slots import SlotAccounting

log = logging.getLogger("flotilla.isolation")

_POLL_S = 0.2
# Until a running suspect has output; the worker does nothing else meanwhile.
_POLL_UNPROVEN_S = 0.02
# A job that was assigned longer ago has arrived, or its message is lost.
_DELIVERY_S = 0.25
_MISSES = 10
_IGNORED_S = 10.0
"""After so many tries without a suspect, those that seem to wait are ignored for so long: Redis has
lost writes, and the next repair corrects it."""


class Isolation:
    """One worker's part in running its pool's suspects. `start` is called with each."""

    def __init__(
        self,
        member: Membership,
        advertised_slots: AdvertisedSlots,
        slots: SlotAccounting,
        runs: Runs,
        start: Callable[[LeasedJob], None],
    ) -> None:
        self._queue, self._pool, self._worker, self._lease_s = member
        self._advertised_slots = advertised_slots
        self._slots = slots
        self._runs = runs
        self._start = start
        self._found = asyncio.Event()
        self._stopped = False
        self._ignored_until = 0.0
        self._taken: set[str] = set()  # ids of suspects

    def suspects_found(self) -> None:
        """A claim has found that suspects wait."""
        if time.monotonic() >= self._ignored_until:
            self._found.set()

    def stop(self) -> None:
        """The worker claims nothing more, suspects neither."""
        self._stopped = True
        self._found.set()

    async def run(self) -> None:
        """Run suspects whenever some wait, until `stop` or cancellation."""
        warn = RareWarning(log)
        while True:
            await self._found.wait()
            if self._stopped:
                return
            self._found.clear()
            try:
                await self._run_suspects()
                await self._end()
            except StoreError as error:
                warn("suspects not taken, trying again: %s", error)
                await asyncio.sleep(_POLL_S)
                self._found.set()

    async def _run_suspects(self) -> None:
        """Return when none wait any more, or none of those that wait can be leased."""
        seen, misses = time.monotonic(), 0
        while misses < _MISSES:
            waiting = await suspects.waiting(self._queue, self._pool)
            now = self._snapshot(waiting=waiting, waited_s=time.monotonic() - seen)
            step = next_suspect_step(now)
            if step is SuspectStep.END:
                return
            if now.isolated or step is SuspectStep.ISOLATE:
                await self._isolate(now)
            if now.isolated and self._slots.isolated and step is SuspectStep.TAKE:
                misses = 0 if await self._take() else misses + 1
            if now.unproven or (self._slots.isolated and misses == 0 and not now.others):
                await asyncio.sleep(_POLL_UNPROVEN_S)
            else:
                await asyncio.sleep(_POLL_S)
        log.warning("suspects of %s wait, but none can be leased", self._pool)
        self._ignored_until = time.monotonic() + _IGNORED_S

    def _snapshot(self, *, waiting: bool, waited_s: float) -> SuspectSnapshot:
        runs, slots = self._runs, self._slots
        self._taken &= runs.keys()
        return SuspectSnapshot(
            waiting=waiting,
            waited_s=waited_s,
            isolated=slots.isolated,
            others=len(runs) - len(self._taken) + slots.requested,
            unproven=sum(not runs[job_id].buffer.log_started for job_id in self._taken),
            draining=self._stopped or not slots.usable,
        )

    async def _isolate(self, now: SuspectSnapshot) -> None:
        """Take the right to run suspects, or keep it."""
        stage = IsolationStage.DRAINING if now.others else IsolationStage.ALONE
        if await suspects.isolate_worker(self._queue, self._pool, self._worker, stage):
            if not self._slots.isolated:
                log.info("claims nothing but suspects of %s", self._pool)
                self._slots.isolated = True
                await self.withdraw()
        elif self._slots.isolated and not now.unproven:
            await self._end()

    async def withdraw(self) -> int:
        """Withdraw all advertised slots; returns how many jobs may still be on their way.

        Raises StoreError.
        """
        in_flight = 0
        for shard in range(self._queue.shards):
            in_flight += (await self._acquire(shard, 0)).in_flight
        return in_flight

    async def _take(self) -> bool:
        """Start a suspect. False if there is none, or other jobs are still on their way."""
        # A script reads one shard; jobs may be on their way from others.
        if self._queue.shards > 1 and await self.withdraw():
            return False
        for shard in range(self._queue.shards):
            job = (await self._acquire(shard, 1)).job
            if job is not None:
                log.info("runs a suspect", extra={"job_id": job.id, "attempt": job.attempt})
                self._taken.add(job.id)
                self._start(job)
                return True
        return False

    async def _acquire(self, shard: int, count: int) -> AcquiredSuspect:
        await self._advertised_slots.wait_until_settled(shard)
        update, failed = self._advertised_slots.start_update(shard), True
        try:
            reply = await suspects.acquire(
                self._queue, shard, self._worker, count, self._lease_s, update
            )
            failed = False
        finally:
            self._advertised_slots.acked(shard, None if failed else 0)
        if update.acknowledged == UNKNOWN and not reply.job:
            await asyncio.sleep(_DELIVERY_S)  # then all that was on its way has arrived
        return reply

    async def _end(self) -> None:
        """Claim other jobs again."""
        if not self._slots.isolated:
            return
        self._slots.isolated = False
        self._taken.clear()
        with contextlib.suppress(StoreError):  # then the lock ends by itself
            none = IsolationStage.NONE
            await suspects.isolate_worker(self._queue, self._pool, self._worker, none)
        self._slots.changed()
