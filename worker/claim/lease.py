"""The leases of the jobs in hand: renewed while the engine makes progress.

A worker that can't renew keeps its jobs: the fence (step_log.py) refuses all that it writes once
a job has been taken back, and its next renewal tells which. So neither a Redis that stands still
nor a worker that did costs a job that nobody else has taken.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from shared.platform.redis_client import RedisError
from shared.protocol.job import LeasedJob
from shared.queue.job_queue import JobQueue

if TYPE_CHECKING:
    from worker.run.runner import Run

log = logging.getLogger("flotilla.lease")

_RETRIES = 12
"""Renewals that a lease has time for while they fail; else there are three."""


class Lease:
    """What lets a worker write of its `runs` (by job id): in each shard a fencing token (step_log.py).

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
        self._fence_tokens = [""] * queue.shards
        self._losses = [0] * queue.shards  # what the queue counted when the fencing token was told
        self._queue = queue
        self._runs = runs
        self._on_lost = on_lost
        self._locks = [asyncio.Lock() for _ in range(queue.shards)]

    def _of(self, shard: int) -> list[Run]:
        return [run for run in self._runs.values() if run.job.shard == shard]

    @property
    def fence_tokens(self) -> list[str]:
        """`fence_token` of all shards."""
        return [self.fence_token(shard) for shard in range(len(self._fence_tokens))]

    def fence_token(self, shard: int) -> str:
        """In which the worker may write of those runs that know of it; '' if it has to renew.

        After a connection was lost Redis may be another one, which knows less of what was leased.
        """
        known = self._losses[shard] == self._queue.losses(shard)
        return self._fence_tokens[shard] if known else ""

    async def renew(self, shard: int) -> None:
        """Renew all of a shard, and learn what has become of its jobs. Raises redis' errors."""
        async with self._locks[shard]:
            runs = self._of(shard)
            jobs, losses = [run.job for run in runs], self._queue.losses(shard)
            renewal = await self._queue.renew(
                shard, self.worker_id, self.fence_token(shard), self.lease_s, jobs
            )
            self._fence_tokens[shard], self._losses[shard] = renewal.fence_token, losses
            for run in runs:
                run.buffer.fence_token = renewal.fence_token
                if run.job.id in renewal.lost:
                    run.buffer.set_watchers(
                        "", watched=False
                    )  # its end has been told by somebody else
                    self._on_lost(run.job, renewal.lost[run.job.id])
                else:
                    watchers, watched = renewal.watchers[run.job.id]
                    run.buffer.set_watchers(watchers, watched=watched)

    def refused(self, shard: int, fence_token: str) -> None:
        """Redis takes nothing in this fencing token (any more): the next one begins with `renew`."""
        if self._fence_tokens[shard] == fence_token:
            self._fence_tokens[shard] = ""


class LeaseKeeper:
    """Renews a lease, a third of its time apart. `progressing()` says whether the engine works."""

    def __init__(self, lease: Lease, progressing: Callable[[], bool]) -> None:
        self._lease = lease
        self._progressing = progressing
        self._failing_since: list[float | None] = [None] * len(lease.fence_tokens)

    async def run(self) -> None:
        """Ends by cancellation. A shard that is not reached does not keep the others waiting."""
        await asyncio.gather(*(self._keep(shard) for shard, _ in enumerate(self._failing_since)))

    async def _keep(self, shard: int) -> None:
        while True:
            renewed = await self.renew(shard)
            await asyncio.sleep(self._lease.lease_s / (3 if renewed else _RETRIES))

    async def renew(self, shard: int) -> bool:
        """Renew a shard once; False if Redis did not answer, so that it is tried again soon."""
        if not self._progressing():
            log.error("the engine hangs; its jobs are not renewed")
            return True
        began, failing_since = time.monotonic(), self._failing_since[shard]
        try:
            async with asyncio.timeout(self._lease.lease_s / 3):
                await self._lease.renew(shard)
        except (RedisError, OSError, TimeoutError) as error:
            if failing_since is None:
                self._failing_since[shard] = began
                log.warning("leases not renewed, trying again: %s", error or type(error).__name__)
            return False
        if failing_since is not None:
            log.warning("leases renewed again after %.1f s", time.monotonic() - failing_since)
        self._failing_since[shard] = None
        return True
