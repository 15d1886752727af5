"""What the autoscale policy takes and returns: limits, observations, its state, decisions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The operator's aims for one pool; the settings of the same names explain them."""

    min: int
    max: int
    target_wait_s: float
    utilization: float
    down_after_s: float
    idle_s: float


@dataclass(frozen=True, slots=True)
class Observation:
    """A pool at one moment. None: not known, because no worker has announced it yet."""

    at_s: float
    """Redis' clock, Unix seconds."""
    waiting: int
    """Jobs in the lanes."""
    waiting_tokens: float | None
    """Estimated cost of the waiting jobs: prompt and completion tokens."""
    oldest_s: float
    """Longest wait in the lanes."""
    running: int
    """Jobs that workers have leased."""
    arrivals_per_s: float
    """Jobs, averaged over about half a minute."""
    job_s: float | None
    """Mean time from lease to end of the jobs that ended lately."""
    job_tokens: float | None
    """Their mean prompt and completion tokens."""
    slots: int | None
    """Jobs that one worker runs at once."""
    ready: int
    """Workers that take jobs, busy ones included."""
    starting: int
    """Workers that load their model, or were requested and have not announced themselves."""
    draining: int
    start_s: float | None
    """From requesting a worker to its first claim."""


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What one decision leaves for the next."""

    wanted: int
    changed_at_s: float
    """When `wanted` last changed."""
    needs: tuple[tuple[float, int], ...] = ()
    """(time, workers needed) of the last `down_after_s`, falling: an entry is dropped when a later
    one is as large."""
    busy_at_s: float = 0.0
    """When a job last waited or ran."""
    at_s: float = 0.0
    """When the decision was made."""
    requested: tuple[tuple[float, int], ...] = ()
    """(time, workers) of the requested workers that are not ready yet."""
    ready: int = 0
    grew_at_s: float = 0.0
    """When `ready` last grew."""
    waiting: int = 0
    oldest_at_s: float = 0.0
    """When the job that has waited the longest was submitted."""
    taken_at_s: float = 0.0
    """When a job was last seen to have left the queue."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Have `wanted` workers."""

    wanted: int
    reason: str
    """A sentence with the figures that led to it."""
    wait_s: float | None
    """What a job submitted now will wait, start of workers included; None: not known."""
    state: PolicyState
