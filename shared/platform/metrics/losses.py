"""What a process has found of lost workers, and of jobs out of time."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from shared.job.states import JobState
from shared.platform.metrics.families import Families

_REAPED = (JobState.QUEUED, JobState.FAILED, JobState.EXPIRED, JobState.CANCELLED)


class ReaperMetrics:
    """What the reaper of this process did. Every gateway and worker runs one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reaped = Families(registry).counter(
            "flotilla_reaped_jobs_total",
            "Jobs taken from silent workers, past their deadline or without a client, by new state",
            "state",
            values=_REAPED,
        )


class LostWorkerMetrics:
    """What the detector of this process did. Every gateway and the maintenance process run one."""

    def __init__(self, registry: CollectorRegistry, reaper: ReaperMetrics) -> None:
        new = Families(registry)
        self.reaped = reaper.reaped
        self.workers = new.counter(
            "flotilla_lost_workers_total",
            "Workers whose jobs this process took: their connection was gone, or they were silent",
        )
        self.false_alarms = new.counter(
            "flotilla_false_alarms_total",
            "Workers whose jobs this process took because they were silent, and that went on later",
        )
