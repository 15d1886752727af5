"""Reads the fleet's state from Redis in a few round trips."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from gateway.core.fleet_view import FleetView
from gateway.ops.autoscaler.scale_object import decision
from gateway.ops.overview.models import (
    LaneOverview,
    PoolOverview,
    RedisOverview,
    TenantOverview,
    WorkerOverview,
)
from shared.fleet.registry import WorkerInfo
from shared.job.rules import CLIENT_LANES
from shared.job.states import WorkerState
from shared.platform.tasks import run_together
from shared.store.health import Health
from shared.store.queue import Queue
from shared.store.views import LaneDepth, depths, waiting_by_tenant

_MOST_TENANTS = 100
"""Tenants with waiting jobs in one lane and shard, which are counted."""
_PHASES = {WorkerState.STARTING: "loading the model", WorkerState.DRAINING: "draining"}


class Reading(NamedTuple):
    """The data of one reading of Redis."""

    lanes: Sequence[LaneDepth]
    tenants: Mapping[str, Sequence[TenantOverview]]


async def read(queue: Queue, fleet: FleetView) -> Reading:
    """Read everything now; refreshes the workers in `fleet`. Raises StoreError."""
    lanes, _ = await run_together(depths(queue), fleet.refresh_workers())
    busy = sorted({lane.pool for lane in lanes if lane.waiting})
    waiting = await waiting_by_tenant(queue, busy, _MOST_TENANTS)
    tenants = {
        pool: [
            TenantOverview(tenant=name, waiting=count, served=found.served.get(name))
            for name, count in found.jobs.most_common()
        ]
        for pool, found in waiting.items()
    }
    return Reading(lanes, tenants)


def redis_overview(health: Health, error: str, since_s: float | None) -> RedisOverview:
    """The state of all servers, as far as it is known. `error`: of the last reading."""
    memory = health.memory
    return RedisOverview(
        ok=not error,
        error=error or None,
        error_since=since_s,
        used_memory=sum(each.used for each in memory),
        max_memory=sum(each.limit for each in memory) if all(m.limit for m in memory) else 0,
        fullest=max((each.used / each.limit for each in memory if each.limit), default=0.0),
        evicts=health.eviction or None,
    )


def workers(fleet: FleetView, rates: Mapping[str, float]) -> list[WorkerOverview]:
    """The present workers and the lost ones that are still shown, by id."""
    lost, ended, now_s = fleet.losses.lost, fleet.losses.ended, fleet.now_s()
    adapters = {name for name, model in fleet.models.items() if model.card.get("parent")}
    seen = {
        worker.id: (worker, age_s)
        for worker, age_s in fleet.heartbeats
        if worker.id in lost or worker.id not in ended
    }
    for each in lost.values():
        seen.setdefault(each.worker.id, (each.worker, max(0.0, now_s - each.since_s)))
    return [
        _lost(info, age_s, lost[worker_id].since_s, adapters)
        if worker_id in lost
        else _worker(info, age_s, rates.get(worker_id), adapters)
        for worker_id, (info, age_s) in sorted(seen.items())
    ]


def _worker(
    info: WorkerInfo, age_s: float, rate: float | None, adapters: Collection[str]
) -> WorkerOverview:
    loads = info.state is WorkerState.STARTING
    return WorkerOverview(
        **_lasting(info, adapters),
        state=info.state,
        reason=info.failure or info.reason,
        phase=_PHASES.get(info.state, ""),
        phase_s=age_s if loads else None,
        busy=info.running,
        kv_use=None if loads else info.kv_usage,
        heartbeat_age_s=None if loads else age_s,
        output_tokens_per_s=rate,
        jobs=info.job_ids,
    )


def _lost(
    info: WorkerInfo, age_s: float, since_s: float, adapters: Collection[str]
) -> WorkerOverview:
    return WorkerOverview(
        **_lasting(info, adapters),
        state="lost",
        reason=info.failure,
        heartbeat_age_s=age_s,
        lost=True,
        lost_since=since_s,
    )


def _lasting(info: WorkerInfo, adapters: Collection[str]) -> dict[str, Any]:
    """The fields that are shown of a lost worker, too."""
    names = ("id", "pool", "engine", "slots", "models", "host", "pid", "version", "start_s")
    kept = {name: getattr(info, name) for name in names}
    return kept | {"held": info.jobs, "adapters": [n for n in info.models if n in adapters]}


def pools(
    fleet: FleetView,
    lanes: Sequence[LaneDepth],
    tenants: Mapping[str, Sequence[TenantOverview]],
    max_depth: Callable[[str], int],
) -> list[PoolOverview]:
    """Every pool that has a model, a worker or a queue. `max_depth`: of a pool's lanes."""
    gone = {*fleet.losses.lost, *fleet.losses.ended}
    models: dict[str, set[str]] = {}
    for name, model in fleet.models.items():
        models.setdefault(model.pool, set()).add(name)
    names = {*models, *(w.pool for w in fleet.workers), *(lane.pool for lane in lanes)}
    found = []
    for pool in sorted(names):
        own = [lane for lane in lanes if lane.pool == pool]
        workers = [w for w in fleet.workers_of(pool) if w.id not in gone]
        serving = [worker for worker in workers if worker.state.serving]
        waiting = sum(lane.waiting for lane in own)
        found.append(
            PoolOverview(
                pool=pool,
                models=sorted(models.get(pool, ())),
                lanes=_lanes(own),
                waiting=waiting,
                oldest_wait_s=max((lane.oldest_s for lane in own), default=0.0),
                running=sum(lane.in_progress for lane in own),
                slots=sum(worker.slots for worker in serving),
                busy=sum(worker.running for worker in serving),
                workers_ready=len(serving),
                workers_starting=sum(w.state is WorkerState.STARTING for w in workers),
                paused=fleet.switches_of(pool).paused,
                intake_stopped=fleet.switches_of(pool).intake_stopped,
                estimated_wait_s=_wait_s(fleet, pool, waiting, serving),
                wait_reason=fleet.wait_reason(pool),
                max_depth=max_depth(pool),
                scale=_scale(fleet, pool),
                tenants=tenants.get(pool, ()),
            )
        )
    return found


def _lanes(lanes: Sequence[LaneDepth]) -> list[LaneOverview]:
    """One for each lane in which jobs can wait."""
    return [
        LaneOverview(
            lane=name,
            waiting=sum(lane.waiting for lane in lanes if lane.lane == name),
            oldest_wait_s=max((lane.oldest_s for lane in lanes if lane.lane == name), default=0.0),
        )
        for name in CLIENT_LANES
    ]


def _scale(fleet: FleetView, pool: str) -> dict[str, Any] | None:
    scale = fleet.scales.get(pool)
    if scale is None:
        return None
    return decision(scale, fleet.now_s()) | {
        "least": scale.limits.min,
        "most": scale.limits.max,
        "usual_start_s": scale.seen.start_s,
    }


def _wait_s(
    fleet: FleetView, pool: str, waiting: int, serving: Sequence[WorkerInfo]
) -> float | None:
    """How long a job submitted now may wait; 0 while slots are free and no job waits."""
    has_room = any(worker.state is WorkerState.READY for worker in serving)
    if has_room and not waiting:
        return 0.0
    return fleet.wait_estimate(pool, waiting + 1).wait_s
