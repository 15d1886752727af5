"""The overview as the API shows it, and the state of the fleet in which problems are found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from shared.fleet.limits import Level
from shared.job.rules import FLEX
from shared.job.states import WorkerState

Tenths = Annotated[float, PlainSerializer(lambda value: round(value, 1))]
Thousandths = Annotated[float, PlainSerializer(lambda value: round(value, 3))]


class _Shown(BaseModel):
    """A part of the overview."""

    model_config = ConfigDict(frozen=True, json_schema_serialization_defaults_required=True)


class LaneOverview(_Shown):
    """The jobs that wait in one lane of a pool."""

    lane: str
    waiting: int
    oldest_wait_s: Tenths


class TenantOverview(_Shown):
    """The waiting jobs of a tenant in a pool."""

    tenant: str
    waiting: int
    served: Thousandths | None = Field(
        None,
        description="part of what the tenants whose jobs wait were served lately, over their "
        "weights: who has least is next; null: none was served",
    )


class PoolOverview(_Shown):
    """One pool."""

    pool: str
    models: Sequence[str] = ()
    paused: bool = Field(False, description="its workers claim nothing")
    intake_stopped: bool = Field(False, description="new requests are refused")
    running: int = Field(0, description="jobs that a worker has")
    slots: int = Field(0, description="of the workers that serve")
    busy: int = Field(0, description="sequences in the engines")
    workers_ready: int = Field(0, description="that serve: ready, or busy for now")
    workers_starting: int = 0
    waiting: int = Field(0, description="jobs in all lanes")
    oldest_wait_s: Tenths = 0.0
    estimated_wait_s: Tenths | None = Field(
        None, description="of a job submitted now; null: unknown"
    )
    wait_reason: str = Field("", description="why no worker is ready, if so")
    max_depth: int = Field(0, description="most jobs that may wait in one lane; 0: not known")
    lanes: Sequence[LaneOverview] = ()
    tenants: Sequence[TenantOverview] = Field((), description="whose jobs wait, the most first")
    scale: dict[str, Any] | None = Field(
        None, description="the autoscaler's decision, if it has made one"
    )

    @property
    def oldest_urgent_s(self) -> float:
        """How long the oldest job has waited, without the lane `flex`, whose jobs may wait."""
        waits = [lane.oldest_wait_s for lane in self.lanes if lane.lane != FLEX]
        return max(waits, default=0.0)


class WorkerOverview(_Shown):
    """A worker, also one that was lost in the last minutes."""

    id: str
    pool: str
    state: WorkerState | Literal["lost"]
    reason: str = Field("", description="why it claims so much; of a lost worker: what failed")
    phase: str = ""
    phase_s: Tenths | None = Field(None, description="how long it has loaded its model")
    engine: str = ""
    slots: int = 0
    busy: int = 0
    kv_use: Thousandths | None = Field(None, description="share of the KV cache in use")
    heartbeat_age_s: Tenths | None = None
    output_tokens_per_s: Tenths | None = None
    jobs: Sequence[str] = Field((), description="64 at most")
    held: int = Field(0, description="jobs at its last heartbeat")
    adapters: Sequence[str] = ()
    models: Sequence[str] = ()
    lost: bool = False
    lost_since: float | None = None
    host: str = ""
    pid: int = 0
    version: str = ""
    start_s: float | None = None


class RedisOverview(_Shown):
    """All Redis servers together."""

    ok: bool = True
    error: str | None = Field(None, description="why the last reading failed")
    error_since: float | None = None
    used_memory: int = 0
    max_memory: int = Field(0, description="0: no limit")
    fullest: Thousandths = Field(0.0, description="share that the fullest server uses")
    evicts: str | None = None


class Action(_Shown):
    """A request that ends a problem, for a button."""

    text: str
    method: str
    path: str
    body: dict[str, Any]


class Problem(_Shown):
    """Something that is wrong."""

    kind: str
    level: Level
    sentence: str
    since: float | None = None
    pool: str = ""
    worker: str = ""
    do: str = Field("", description="what to do first")
    action: Action | None = Field(None, description="a call that mends it")

    @property
    def key(self) -> tuple[str, str, str]:
        """The same problem found again has the same key."""
        return self.kind, self.pool, self.worker


class Recovered(_Shown):
    """A problem that has ended in the last hour."""

    kind: str
    pool: str
    worker: str
    since: float
    ended: float
    sentence: str


class Verdict(_Shown):
    """One sentence about the fleet, and all that is wrong."""

    level: Level
    sentence: str
    since: float | None
    problems: Sequence[Problem]
    recovered: Sequence[Recovered]


class FleetOverview(_Shown):
    """The whole overview."""

    object: Literal["overview"] = "overview"
    at: Thousandths = Field(description="Unix seconds by Redis' clock")
    gateway: Mapping[str, str] = Field(description="id and version")
    engines: Sequence[str]
    simulated: bool = Field(description="answers of at least one worker are simulated")
    verdict: Verdict
    rates: Mapping[str, float | None] = Field(
        description="per second, over the last 10 s; null: not known yet"
    )
    pools: Sequence[PoolOverview]
    workers: Sequence[WorkerOverview]
    redis: RedisOverview


@dataclass(frozen=True, slots=True)
class FleetState:
    """The fleet at one moment. Times are Unix seconds by Redis' clock."""

    at_s: float
    pools: Sequence[PoolOverview] = ()
    workers: Sequence[WorkerOverview] = ()
    redis: RedisOverview = field(default_factory=RedisOverview)
    gateway_problems: Mapping[str, str] = field(default_factory=dict)
    """The problems of this gateway, by the name of the limit."""
