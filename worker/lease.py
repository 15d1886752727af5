"""The leases of the jobs in hand: renewed while the engine makes progress, given up when it hangs.

A worker that can't reach Redis must assume that its jobs are somebody else's before they are: it
drops them a little before their leases end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from shared.job import LeasedJob
from shared.queue import JobQueue
from shared.redis import RedisError
from worker.runner import Run

log = logging.getLogger("flotilla.lease")

_SAFETY = 0.8
"""Share of the lease after which silence from Redis means that it is lost."""


class LeaseKeeper:
    """Renews the leases of `runs` (by job id), a third of the lease apart.

    `progressing()` says whether the engine works; `on_lost(job, state)` hears of lost leases.
    """

    def __init__(
        self,
        queue: JobQueue,
        worker_id: str,
        lease_s: float,
        runs: Mapping[str, Run],
        progressing: Callable[[], bool],
        on_lost: Callable[[LeasedJob, str], None],
    ) -> None:
        self._queue = queue
        self._worker_id = worker_id
        self._lease_s = lease_s
        self._runs = runs
        self._progressing = progressing
        self._on_lost = on_lost
        self._renewed = time.monotonic()

    async def run(self) -> None:
        """Ends by cancellation."""
        while True:
            await asyncio.sleep(self._lease_s / 3)
            await self.renew()

    async def renew(self) -> None:
        """Renew everything once, or drop everything when that has failed for too long."""
        if not self._runs:
            self._renewed = time.monotonic()
            return
        if not self._progressing():
            log.error("the engine hangs; its %d jobs are not renewed", len(self._runs))
            return
        # Jobs that were leased after this moment are younger than the renewal says.
        before = time.monotonic()
        jobs = [run.job for run in self._runs.values()]
        left_s = _SAFETY * self._lease_s - (before - self._renewed)
        try:
            async with asyncio.timeout(min(self._lease_s / 3, max(0.0, left_s))):
                lost = await self._queue.renew(self._worker_id, jobs)
        except (RedisError, OSError, TimeoutError) as error:
            silent_s = time.monotonic() - self._renewed
            log.warning("leases not renewed for %.1f s: %s", silent_s, error)
            if silent_s > _SAFETY * self._lease_s - self._lease_s / 3:
                for job in jobs:
                    self._on_lost(job, "unreachable")
            return
        self._renewed = before
        for job in jobs:
            if job.id in lost:
                self._on_lost(job, lost[job.id])
