"""What a process has found of lost workers, and of jobs out of time."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from shared.job.states import JobState
from shared.platform.metrics.families import Families

_TAKEN = (JobState.QUEUED, JobState.FAILED, JobState.EXPIRED, JobState.CANCELLED)


class UpkeepMetrics:
    """What the upkeep of this process did. Every gateway and the maintenance process run one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        new = Families(registry)
        self.taken = new.counter(
            "flotilla_reaped_jobs_total",
            "Jobs taken from lost workers, past their deadline or without a client, by new state",
            "state",
            values=_TAKEN,
        )
        self.lost_workers = new.counter(
            "flotilla_lost_workers_total",
            "Workers whose jobs this process took: their connection was gone, or they stood still",
        )
