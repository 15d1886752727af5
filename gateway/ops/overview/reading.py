"""Reads the fleet's state from Redis: a few round trips, however many people look at it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gateway.core.fleet_view import FleetView
from gateway.ops.overview.fleet_state import (
    LaneState,
    PoolState,
    RedisState,
    TenantState,
    WorkerView,
)
from gateway.ops.overview.tenant_sample import TenantSample
from shared.fleet.registry import WorkerInfo
from shared.job.adapter_queues import pool_of
from shared.job.lanes import WAITING_LANES
from shared.job.states import WorkerState
from shared.store.redis import dead_letters
from shared.store.redis.depths import LaneDepth, depths
from shared.store.redis.eviction import EvictionMonitor
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.throughput import Throughput, throughput


class Reading(NamedTuple):
    """What Redis has at one moment."""

    lanes: Sequence[LaneDepth]
    total: Throughput
    dead_letters: int
    newest_letter_s: float | None
    tenants: Mapping[str, Sequence[TenantState]]

    @property
    def unfinished(self) -> int:
        """Jobs that wait or run."""
        return sum(lane.waiting + lane.in_progress for lane in self.lanes)


async def read(queue: JobQueue, fleet: FleetView, sample: TenantSample) -> Reading:
    """Read everything now; refreshes the workers in `fleet`. Raises redis' errors."""
    lanes, letters, _ = await asyncio.gather(
        depths(queue), _letters(queue), fleet.refresh_workers()
    )
    queues: dict[str, list[str]] = {}
    totals: dict[str, tuple[int, int]] = {}
    for lane in lanes:
        pool = pool_of(lane.pool)
        if lane.pool not in queues.setdefault(pool, []):
            queues[pool].append(lane.pool)
        waiting, running = totals.get(pool, (0, 0))
        totals[pool] = waiting + lane.waiting, running + lane.in_progress
    running_ids: dict[str, list[str]] = {}
    for worker in fleet.workers:
        running_ids.setdefault(worker.pool, []).extend(worker.job_ids)
    total, tenants = await asyncio.gather(
        throughput(queue, dict.fromkeys(lane.pool for lane in lanes)),
        sample.read(queues, running_ids, totals),
    )
    return Reading(lanes, total, letters[0], letters[1], tenants)


async def _letters(queue: JobQueue) -> tuple[int, float | None]:
    counted, newest = await asyncio.gather(
        dead_letters.count(queue), dead_letters.page(queue, None, None, 1)
    )
    return counted.kept, newest[0].id.ms / 1e3 if newest else None


def redis_state(eviction: EvictionMonitor, error: str, since_s: float | None) -> RedisState:
    """The state of all servers, as far as it is known. `error`: of the last reading."""
    memory = eviction.memory
    return RedisState(
        error=error,
        since_s=since_s,
        used_memory=sum(each.used for each in memory),
        max_memory=sum(each.limit for each in memory) if all(m.limit for m in memory) else 0,
        fullest=max((each.used / each.limit for each in memory if each.limit), default=0.0),
        eviction_problem=eviction.problem,
    )


def worker_views(fleet: FleetView, rates: Mapping[str, float]) -> list[WorkerView]:
    """The workers that are there and those that were lost lately, by id."""
    lost, ended = fleet.losses.lost, fleet.losses.ended
    views = {
        worker.id: WorkerView(
            worker,
            age_s,
            lost[worker.id].since_s if worker.id in lost else None,
            rates.get(worker.id),
        )
        for worker, age_s in fleet.heartbeats
        if worker.id in lost or worker.id not in ended
    }
    for worker_id, each in lost.items():
        age_s = max(0.0, fleet.now_s() - each.since_s)
        views.setdefault(worker_id, WorkerView(each.worker, age_s, each.since_s))
    return [views[worker_id] for worker_id in sorted(views)]


def pool_states(
    fleet: FleetView,
    lanes: Sequence[LaneDepth],
    tenants: Mapping[str, Sequence[TenantState]],
    max_depth: Callable[[str], int],
) -> list[PoolState]:
    """Every pool that has a model, a worker or a queue. `max_depth`: of a pool's lanes."""
    now_s = fleet.now_s()
    gone = {*fleet.losses.lost, *fleet.losses.ended}
    models: dict[str, set[str]] = {}
    for name, model in fleet.models.items():
        models.setdefault(pool_of(model.pool), set()).add(name)
    names = {*models, *(w.pool for w in fleet.workers), *(pool_of(lane.pool) for lane in lanes)}
    found = []
    for pool in sorted(names):
        own = [lane for lane in lanes if pool_of(lane.pool) == pool]
        workers = [w for w in fleet.workers_of(pool) if w.id not in gone]
        serving = [worker for worker in workers if worker.state.serving]
        waiting = sum(lane.waiting for lane in own)
        scale = fleet.scales.get(pool)
        found.append(
            PoolState(
                pool=pool,
                models=sorted(models.get(pool, ())),
                lanes=_lane_states(own),
                running=sum(lane.in_progress for lane in own),
                slots=sum(worker.slots for worker in serving),
                busy=sum(worker.running for worker in serving),
                workers_ready=len(serving),
                workers_starting=sum(w.state is WorkerState.STARTING for w in workers),
                paused=pool in fleet.switches.paused,
                intake_stopped=pool in fleet.switches.intake_stopped,
                wait_s=_wait_s(fleet, pool, waiting, serving),
                wait_reason=fleet.wait_reason(pool),
                max_depth=max_depth(pool),
                scale=scale,
                scale_is_stale=scale is not None and scale.stale(now_s),
                tenants=tenants.get(pool, ()),
            )
        )
    return found


def _lane_states(lanes: Sequence[LaneDepth]) -> list[LaneState]:
    """One for each lane in which jobs can wait, over the queues of adapters."""
    return [
        LaneState(
            name,
            sum(lane.waiting for lane in lanes if lane.lane == name),
            max((lane.oldest_s for lane in lanes if lane.lane == name), default=0.0),
        )
        for name in WAITING_LANES
    ]


def _wait_s(
    fleet: FleetView, pool: str, waiting: int, serving: Sequence[WorkerInfo]
) -> float | None:
    """How long a job submitted now may wait; 0 while slots are free and no job waits."""
    has_room = any(worker.state is WorkerState.READY for worker in serving)
    if has_room and not waiting:
        return 0.0
    return fleet.wait_estimate(pool, waiting + 1).wait_s
