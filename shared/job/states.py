"""The states of a job and of a worker. The Lua scripts spell the same (scripts/common/job.lua), and
the protocol shows what leads from one to the next."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """The state of a job, in the API, in logs and in metrics. OpenAI's words."""

    QUEUED = "queued"
    """Waits in a lane. In: submit, requeue. Out: claim, cancel, expire."""
    IN_PROGRESS = "in_progress"
    """A worker has it. In: claim. Out: everything but a claim."""
    COMPLETED = "completed"
    """The engine answered it. In: the worker's finish. Terminal."""
    FAILED = "failed"
    """The engine refused it, or its worker was lost. In: finish, requeue. Terminal."""
    CANCELLED = "cancelled"
    """The client cancelled it; what was generated is kept. In: cancel. Terminal."""
    EXPIRED = "expired"
    """Its deadline passed. In: expire, a claim (which checks it too). Terminal."""

    @property
    def terminal(self) -> bool:
        """Nothing leads out of it; its job is deleted after a while."""
        return self not in (JobState.QUEUED, JobState.IN_PROGRESS)


class WorkerState(StrEnum):
    """The state of a worker, in the registry, in health checks, in metrics and in logs."""

    STARTING = "starting"
    """Loads its model; claims nothing."""
    READY = "ready"
    """Has free slots and claims."""
    BUSY = "busy"
    """Every slot is taken, or the KV cache is nearly full; claims nothing."""
    PAUSED = "paused"
    """An operator has paused it or put its engine to sleep; claims nothing."""
    DRAINING = "draining"
    """Is ending: finishes the jobs that it holds, claims nothing."""

    @property
    def serving(self) -> bool:
        """Its model is loaded and it runs jobs: it is ready, or busy for now."""
        return self in (WorkerState.READY, WorkerState.BUSY)
