"""The state of the fleet at one moment: what problems are found in, and the overview shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shared.fleet.registry import WorkerInfo
from shared.fleet.scale_decisions import Scale
from shared.job.lanes import FLEX, SUSPECT_LANE


@dataclass(frozen=True, slots=True)
class LaneState:
    """What waits in one lane of a pool, with the queues of its adapters."""

    lane: str
    waiting: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class TenantState:
    """The jobs of a tenant in a pool."""

    tenant: str
    waiting: int
    running: int


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker that is there, or was lost lately."""

    info: WorkerInfo
    age_s: float
    """Since it last announced itself; of a worker that loads its model: since it began."""
    lost_since_s: float | None = None
    """Unix seconds; None: it is not lost."""
    output_tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class PoolState:
    """One pool, with the queues of its adapters."""

    pool: str
    models: Sequence[str] = ()
    lanes: Sequence[LaneState] = ()
    running: int = 0
    """Jobs that have a lease."""
    slots: int = 0
    """Of the workers that serve."""
    busy: int = 0
    """Sequences in their engines."""
    workers_ready: int = 0
    """Workers that serve: ready, or busy for now."""
    workers_starting: int = 0
    paused: bool = False
    intake_stopped: bool = False
    wait_s: float | None = None
    """Estimate for a job submitted now."""
    wait_reason: str = ""
    """Why no worker is ready, if so."""
    max_depth: int = 0
    """Most jobs that may wait in one lane; 0: not known."""
    scale: Scale | None = None
    scale_is_stale: bool = False
    tenants: Sequence[TenantState] = ()

    @property
    def waiting(self) -> int:
        """Jobs that wait, suspects included."""
        return sum(lane.waiting for lane in self.lanes)

    @property
    def suspects(self) -> int:
        """Jobs that wait to run alone."""
        return sum(lane.waiting for lane in self.lanes if lane.lane == SUSPECT_LANE)

    @property
    def oldest_s(self) -> float:
        """How long the oldest job has waited."""
        return max((lane.oldest_s for lane in self.lanes), default=0.0)

    @property
    def oldest_urgent_s(self) -> float:
        """The same without the lane `flex`, whose jobs may wait."""
        return max((lane.oldest_s for lane in self.lanes if lane.lane != FLEX), default=0.0)


@dataclass(frozen=True, slots=True)
class RedisState:
    """All Redis servers together."""

    error: str = ""
    """Why the last reading failed; empty if it did not."""
    since_s: float | None = None
    """When the first of the failed readings was, Unix seconds."""
    used_memory: int = 0
    max_memory: int = 0
    """0: there is no limit."""
    fullest: float = 0.0
    """The share of its memory that the fullest server uses; 0 where there is no limit."""
    eviction_problem: str = ""


@dataclass(frozen=True, slots=True)
class FleetState:
    """The fleet at one moment. Times are Unix seconds by Redis' clock."""

    at_s: float
    pools: Sequence[PoolState] = ()
    workers: Sequence[WorkerView] = ()
    adapters: frozenset[str] = frozenset()
    """Names of models that are adapters."""
    dead_letters: int = 0
    newest_letter_s: float | None = None
    """When the newest dead letter was written."""
    rates: Mapping[str, float | None] = field(default_factory=dict)
    recent: Mapping[str, int] = field(default_factory=dict)
    """Jobs submitted, completed, failed and cancelled within the window of the rates."""
    redis: RedisState = field(default_factory=RedisState)
    gateway_problems: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with this gateway: kind -> sentence."""

    @property
    def slots(self) -> int:
        """Of all pools."""
        return sum(pool.slots for pool in self.pools)

    @property
    def busy(self) -> int:
        """Sequences in all engines."""
        return sum(pool.busy for pool in self.pools)

    @property
    def workers_ready(self) -> int:
        """Workers that serve, in all pools."""
        return sum(pool.workers_ready for pool in self.pools)

    @property
    def waiting(self) -> int:
        """Jobs that wait, in all pools."""
        return sum(pool.waiting for pool in self.pools)
