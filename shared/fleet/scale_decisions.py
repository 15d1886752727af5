"""The autoscaler's decisions: its tick makes them, all other processes read them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shared.fleet.limits import AUTOSCALER_SILENT

_STALE_TICKS = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """The operator's limits for one pool; the settings of the same names explain them."""

    min: int
    max: int
    down_after_s: float
    idle_s: float


@dataclass(frozen=True, slots=True)
class Observation:
    """A pool at one moment. None: not known, because no worker has announced it yet."""

    at_s: float
    """Redis' clock, Unix seconds."""
    waiting: int
    """Jobs in the lanes."""
    oldest_s: float
    """Longest wait in the lanes."""
    running: int
    """Jobs that workers have leased."""
    slots: int | None
    """Jobs that one worker runs at once."""
    ready: int
    """Workers that take jobs, busy ones included."""
    starting: int
    """Workers that load their model."""
    draining: int
    start_s: float | None
    """From a worker's start to its first claim."""
    job_s: float | None
    """Mean time from lease to end of the workers' jobs."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How many workers a pool should have, and why. Times are by Redis' clock."""

    pool: str
    model: str
    wanted: int
    reason: str
    seen: Observation
    limits: Limits
    tick_s: float
    """Between two decisions."""
    configured: tuple[int, int] | None = None
    """(least, most) workers by the settings; `limits` may have an operator's WorkerRange."""
    # What the next tick needs of this one.
    needs: tuple[tuple[float, int], ...] = ()
    """(time, workers needed) in the last `down_after_s`, falling: the first is the most."""
    busy_at_s: float = 0.0
    """When a job last waited or ran."""
    draining: tuple[str, ...] = ()
    """The names that the docker actuator has returned."""

    @property
    def at_s(self) -> float:
        """When it was decided, Unix seconds."""
        return self.seen.at_s

    def stale(self, now_s: float) -> bool:
        """The autoscaler has stopped updating it: do not act on it."""
        return now_s - self.at_s > max(AUTOSCALER_SILENT.lowest, _STALE_TICKS * self.tick_s)


@dataclass(frozen=True, slots=True)
class WorkerRange:
    """An operator's own range of workers for a pool, in place of the settings' one."""

    least: int
    most: int
    configured: tuple[int, int] | None = None
    """The settings' range that it replaces. Once they have another one, this range ends."""

    def applied_to(self, limits: Limits) -> Limits:
        """The pool's limits with this range; unchanged where the range has ended."""
        if self.configured not in (None, (limits.min, limits.max)):
            return limits
        return replace(limits, min=self.least, max=self.most)


@dataclass(frozen=True, slots=True)
class ScalingEvent:
    """A decision that changed how many workers are wanted."""

    at_s: float
    before: int | None
    """None: it was the first one."""
    wanted: int
    reason: str
    seen: Observation
