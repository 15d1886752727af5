"""The leases of the jobs in hand: renewed while the engine makes progress, given up when it hangs.

A worker that can't reach Redis must assume that its jobs are somebody else's before they are: it
drops them a little before their leases end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from shared.job import LeasedJob
from shared.queue import JobQueue
from shared.redis import RedisError

if TYPE_CHECKING:
    from worker.runner import Run

log = logging.getLogger("flotilla.lease")

_SAFETY = 0.8
"""Share of the lease after which silence from Redis means that it is lost."""


class Lease:
    """What lets a worker write of its `runs` (by job id): in each shard an epoch (step_log.py).

    `on_lost(job, state)` hears of jobs that are not its own any more.
    """

    def __init__(
        self,
        queue: JobQueue,
        worker_id: str,
        lease_s: float,
        runs: Mapping[str, Run],
        on_lost: Callable[[LeasedJob, str], None],
    ) -> None:
        self.worker_id = worker_id
        self.lease_s = lease_s
        self._epochs = [""] * queue.shards
        self._losses = [0] * queue.shards  # what the queue counted when the epoch was told
        self._queue = queue
        self._runs = runs
        self._on_lost = on_lost
        self._locks = [asyncio.Lock() for _ in range(queue.shards)]

    def idle(self, shard: int) -> bool:
        """None of its jobs is in hand."""
        return not self._of(shard)

    def _of(self, shard: int) -> list[Run]:
        return [run for run in self._runs.values() if run.job.shard == shard]

    @property
    def epochs(self) -> list[str]:
        """`epoch` of all shards."""
        return [self.epoch(shard) for shard in range(len(self._epochs))]

    def epoch(self, shard: int) -> str:
        """In which the worker may write of those runs that know of it; '' if it has to renew.

        After a connection was lost Redis may be another one, which knows less of what was leased.
        """
        known = self._losses[shard] == self._queue.losses(shard)
        return self._epochs[shard] if known else ""

    async def renew(self, shard: int) -> None:
        """Renew all of a shard, and learn what has become of its jobs. Raises redis' errors."""
        async with self._locks[shard]:
            runs = self._of(shard)
            jobs, losses = [run.job for run in runs], self._queue.losses(shard)
            renewal = await self._queue.renew(
                shard, self.worker_id, self.epoch(shard), self.lease_s, jobs
            )
            self._epochs[shard], self._losses[shard] = renewal.epoch, losses
            for run in runs:
                run.outbox.epoch = renewal.epoch
                if run.job.id in renewal.lost:
                    run.outbox.listen("", watched=False)  # its end has been told by somebody else
                    self._on_lost(run.job, renewal.lost[run.job.id])
                else:
                    watchers, watched = renewal.listeners[run.job.id]
                    run.outbox.listen(watchers, watched=watched)

    def refused(self, shard: int, epoch: str) -> None:
        """Redis takes nothing in this epoch (any more): the next one begins with `renew`."""
        if self._epochs[shard] == epoch:
            self._epochs[shard] = ""

    def give_up(self, shard: int) -> None:
        """Redis was silent for too long: all jobs of the shard may be somebody else's."""
        for run in self._of(shard):
            self._on_lost(run.job, "unreachable")


class LeaseKeeper:
    """Renews a lease, a third of its time apart. `progressing()` says whether the engine works."""

    def __init__(self, lease: Lease, progressing: Callable[[], bool]) -> None:
        self._lease = lease
        self._progressing = progressing
        self._renewed = [time.monotonic()] * len(lease.epochs)

    async def run(self) -> None:
        """Ends by cancellation. A shard that is not reached does not keep the others waiting."""
        await asyncio.gather(*(self._keep(shard) for shard, _ in enumerate(self._renewed)))

    async def _keep(self, shard: int) -> None:
        while True:
            await self.renew(shard)
            await asyncio.sleep(self._lease.lease_s / 3)

    async def renew(self, shard: int) -> None:
        """Renew a shard once, or drop its jobs when that has failed for too long."""
        if not self._progressing():
            log.error("the engine hangs; its jobs are not renewed")
            return
        # Jobs that were leased after this moment are younger than the renewal says.
        before, lease_s = time.monotonic(), self._lease.lease_s
        if self._lease.idle(shard):
            self._renewed[shard] = before
        left_s = _SAFETY * lease_s - (before - self._renewed[shard])
        try:
            async with asyncio.timeout(min(lease_s / 3, max(0.0, left_s))):
                await self._lease.renew(shard)
        except (RedisError, OSError, TimeoutError) as error:
            silent_s = time.monotonic() - self._renewed[shard]
            log.warning("leases not renewed for %.1f s: %s", silent_s, error)
            if silent_s > _SAFETY * lease_s - lease_s / 3:
                self._lease.give_up(shard)
                # As far as jobs to come are concerned.
                self._renewed[shard] = time.monotonic()
            return
        self._renewed[shard] = before
