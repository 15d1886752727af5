"""The states of a job and of a worker, and the transitions between those of a job.

The Lua scripts spell the same states (scripts/common/job.lua).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


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
        """No event leads out of a terminal state; its job is deleted after a while."""
        return all(self not in transition.sources for transition in TRANSITIONS.values())


class JobEvent(StrEnum):
    """An event in the life of a job."""

    CLAIM = "claim"
    REQUEUE = "requeue"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"
    EXPIRE = "expire"


class Transition(NamedTuple):
    """An event is allowed in `sources` and leads to `target`."""

    sources: frozenset[JobState]
    target: JobState


_QUEUED = frozenset({JobState.QUEUED})
_RUNNING = frozenset({JobState.IN_PROGRESS})

TRANSITIONS: dict[JobEvent, Transition] = {
    JobEvent.CLAIM: Transition(_QUEUED, JobState.IN_PROGRESS),
    JobEvent.REQUEUE: Transition(_RUNNING, JobState.QUEUED),
    JobEvent.COMPLETE: Transition(_RUNNING, JobState.COMPLETED),
    JobEvent.FAIL: Transition(_RUNNING, JobState.FAILED),
    JobEvent.CANCEL: Transition(_QUEUED | _RUNNING, JobState.CANCELLED),
    JobEvent.EXPIRE: Transition(_QUEUED | _RUNNING, JobState.EXPIRED),
}


class IllegalTransition(Exception):
    """The event can't happen to a job in this state."""


def after(state: JobState, event: JobEvent) -> JobState:
    """The state that `event` leads to from `state`. Raises IllegalTransition."""
    transition = TRANSITIONS[event]
    if state not in transition.sources:
        raise IllegalTransition(f"{event} can't happen to a job that is {state}")
    return transition.target


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
