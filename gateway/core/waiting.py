"""What is known of a job that waits."""

from __future__ import annotations

from typing import NamedTuple

from gateway.core.fleet_view import FleetView
from shared.job.job import Job
from shared.platform.durations import duration
from shared.store.redis.job_queue import JobQueue
from shared.store.views import places


class Waiting(NamedTuple):
    """A job's place in its queue, and its estimate."""

    position: int | None = None
    """In its queue, better lanes included."""
    tenants: int = 0
    """That have jobs waiting in its lane, and are served in turn."""
    wait_s: float | None = None
    """The estimate."""

    @property
    def estimate(self) -> str:
        """The estimate, in words; empty: not known."""
        return "" if self.wait_s is None else duration(self.wait_s)


async def waiting(queue: JobQueue, fleet: FleetView, job: Job) -> Waiting:
    """The facts about one job; empty if it does not wait (any more). Raises StoreError."""
    (place,) = await places(queue, [job])
    if place is None:
        return Waiting()
    wait = fleet.wait_estimate(job.pool, place.position)
    return Waiting(place.position, place.tenants, wait.wait_s)
