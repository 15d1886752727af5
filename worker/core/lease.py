"""The leases of a worker's jobs, renewed while the engine makes progress.

A worker that can't renew keeps its jobs: Redis refuses its writes once a job has been taken back
(fencing, see shared/job/step_log.py), and the reply to the next renewal lists those jobs. So a
pause of Redis or of the worker loses no job unless another worker has taken it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from math import inf

from shared.job.fair_shares import NOTHING, Account
from shared.job.job import LeasedJob
from shared.job.step_log import JobStream
from shared.platform.tasks import run_together
from shared.store.interface import StoreError
from worker.core.membership import Membership

log = logging.getLogger("flotilla.lease")

_TRIES_PER_LEASE = 12
"""How often a renewal is tried within a lease while it fails."""
_RENEWALS_PER_LEASE = 3


class Lease:
    """One worker's leases: per shard, the fencing token under which it may write.

    `held_jobs` returns the jobs that the worker holds. `on_lost(job, state)` is called for each job
    whose lease is another worker's or that has ended; `state` is the job's state now. `charges`
    returns what a renewal reports: see `Charges.take`.
    """

    def __init__(
        self,
        member: Membership,
        held_jobs: Callable[[], Iterable[JobStream]],
        on_lost: Callable[[LeasedJob, str], None],
        charges: Callable[[int], Mapping[Account, float]] = lambda shard: NOTHING,
    ) -> None:
        self._queue, _, self.worker_id, self.lease_s = member
        queue = self._queue
        self.renewed_at = [-inf] * queue.shards
        """For each shard, when Redis last renewed the leases, on the monotonic clock."""
        self._fence_tokens = [""] * queue.shards
        self._losses = [0] * queue.shards  # `queue.losses` when the token was issued
        self._held_jobs = held_jobs
        self._on_lost = on_lost
        self._charges = charges
        self._locks = [asyncio.Lock() for _ in range(queue.shards)]

    @property
    def fence_tokens(self) -> list[str]:
        """`fence_token` of all shards."""
        return [self.fence_token(shard) for shard in range(len(self._fence_tokens))]

    def fence_token(self, shard: int) -> str:
        """The token for writes about jobs that have the same one; '' if it has to renew first.

        After a lost connection another Redis may answer, which has older leases: renew then, too.
        """
        current = self._losses[shard] == self._queue.losses(shard)
        return self._fence_tokens[shard] if current else ""

    async def renew(self, shard: int) -> None:
        """Renew all leases of a shard and update its jobs from the reply. Raises StoreError."""
        async with self._locks[shard]:
            streams = [stream for stream in self._held_jobs() if stream.job.shard == shard]
            jobs, losses = [stream.job for stream in streams], self._queue.losses(shard)
            renewal = await self._queue.renew(
                shard,
                self.worker_id,
                self.fence_token(shard),
                self.lease_s,
                jobs,
                self._charges(shard),
            )
            self._fence_tokens[shard], self._losses[shard] = renewal.fence_token, losses
            self.renewed_at[shard] = time.monotonic()
            for stream in streams:
                stream.fence_token = renewal.fence_token
                if stream.job.id in renewal.lost:
                    # Whoever ended the job has notified the gateways.
                    stream.set_watchers("", watched=False)
                    self._on_lost(stream.job, renewal.lost[stream.job.id])
                else:
                    watchers, watched = renewal.watchers[stream.job.id]
                    stream.set_watchers(watchers, watched=watched)

    def invalidate(self, shard: int, fence_token: str) -> None:
        """Redis refused a write under this token: `renew` has to fetch a new one."""
        if self._fence_tokens[shard] == fence_token:
            self._fence_tokens[shard] = ""


class LeaseRenewer:
    """Renews a lease three times in its length. `progressing` returns whether the engine works."""

    def __init__(self, lease: Lease, progressing: Callable[[], bool]) -> None:
        self._lease = lease
        self._progressing = progressing
        self._failing_since: list[float | None] = [None] * len(lease.fence_tokens)

    async def run(self) -> None:
        """Renew until cancellation. A shard that can't be reached does not delay the others."""
        await run_together(
            *(self._renew_forever(shard) for shard, _ in enumerate(self._failing_since))
        )

    async def _renew_forever(self, shard: int) -> None:
        while True:
            renewed = await self.renew(shard)
            per_lease = _RENEWALS_PER_LEASE if renewed else _TRIES_PER_LEASE
            await asyncio.sleep(self._lease.lease_s / per_lease)

    async def renew(self, shard: int) -> bool:
        """Renew a shard once. False if Redis did not answer: then it should be tried again soon."""
        if not self._progressing():
            log.error("leases not renewed: the engine makes no progress")
            return True
        began, failing_since = time.monotonic(), self._failing_since[shard]
        try:
            async with asyncio.timeout(self._lease.lease_s / _RENEWALS_PER_LEASE):
                await self._lease.renew(shard)
        except (StoreError, TimeoutError) as error:
            if failing_since is None:
                self._failing_since[shard] = began
                log.warning(
                    "leases not renewed, trying again: %s",
                    error or type(error).__name__,
                    extra={"shard": shard},
                )
            return False
        if failing_since is not None:
            seconds = time.monotonic() - failing_since
            log.warning("leases renewed after %.1f s", seconds, extra={"shard": shard})
        self._failing_since[shard] = None
        return True
