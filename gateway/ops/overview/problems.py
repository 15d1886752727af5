"""Finds what is wrong with the fleet: compares its state with the table of limits. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from gateway.ops.overview.models import Action, FleetState, PoolOverview, Problem, WorkerOverview
from shared.fleet import limits
from shared.fleet.limits import Level, Limit
from shared.job.states import WorkerState
from shared.platform.durations import duration

_OF_GATEWAY = (
    limits.GATEWAY_TASKS,
    limits.GATEWAY_FORMAT,
    limits.GATEWAY_FLEET,
    limits.REDIS_FULL,
)


def find_problems(state: FleetState) -> list[Problem]:
    """All problems, the worst first."""
    found = chain(
        _of_redis(state),
        _of_gateway(state),
        chain.from_iterable(_of_worker(worker, state) for worker in state.workers),
        chain.from_iterable(_of_pool(pool, state) for pool in state.pools),
    )
    return sorted(found, key=lambda problem: problem.level is not Level.PROBLEM)


def check(
    limit: Limit, value: float, words: dict[str, Any], *, mild: bool = False, **fields: Any
) -> Iterator[Problem]:
    """The problem of a value that reaches the limit; `mild`: it will end by itself."""
    level = limit.level(value)
    if level is not Level.OK:
        yield Problem(
            kind=limit.name,
            level=Level.WARNING if mild else level,
            sentence=limit.text.format(**words),
            do=limit.do.format(**words),
            **fields,
        )


def _of_redis(state: FleetState) -> Iterator[Problem]:
    redis = state.redis
    error, evicts = (redis.error or "")[:200], redis.evicts or ""
    yield from check(limits.REDIS_UNAVAILABLE, bool(error), {"why": error}, since=redis.error_since)
    yield from check(limits.REDIS_EVICTS, bool(evicts), {"why": evicts})
    yield from check(limits.REDIS_MEMORY, redis.fullest, {"share": redis.fullest})


def _of_gateway(state: FleetState) -> Iterator[Problem]:
    for limit in _OF_GATEWAY:
        why = state.gateway_problems.get(limit.name, "")[:300]
        if why and not (state.redis.error and limit is limits.GATEWAY_FLEET):
            yield from check(limit, limit.lowest, {"why": why})


def _of_worker(worker: WorkerOverview, state: FleetState) -> Iterator[Problem]:
    place: dict[str, Any] = {"pool": worker.pool, "worker": worker.id}
    if worker.lost_since is not None:
        waiting = sum(pool.waiting for pool in state.pools if pool.pool == worker.pool)
        lost = {
            "worker": worker.id,
            "ago": duration(state.at_s - worker.lost_since),
            "why": f": {worker.reason}" if worker.reason else "",
            "had": f", {worker.held} at its last heartbeat," if worker.held else "",
            "waiting": "1 waits" if waiting == 1 else f"{waiting} wait",
        }
        yield from check(limits.WORKER_LOST, 1, lost, since=worker.lost_since, **place)
        return
    loads = worker.state is WorkerState.STARTING
    limit = limits.WORKER_LOADS_LONG if loads else limits.WORKER_SILENT
    age_s = (worker.phase_s if loads else worker.heartbeat_age_s) or 0.0
    words = {"worker": worker.id, "age": duration(age_s)}
    yield from check(limit, age_s, words, since=state.at_s - age_s, **place)


def _of_pool(pool: PoolOverview, state: FleetState) -> Iterator[Problem]:
    words: dict[str, Any] = {
        "pool": pool.pool,
        "waiting": _wait(pool.waiting),
        "wait": duration(pool.oldest_wait_s),
        "why": pool.wait_reason or "no worker is ready",
    }
    path = f"/admin/pools/{pool.pool}/resume"
    resume = Action(text=f"Resume {pool.pool}", method="POST", path=path, body={})
    stopped: dict[str, Any] = {"pool": pool.pool, "action": resume}
    yield from check(limits.INTAKE_STOPPED, pool.intake_stopped, words, **stopped)
    yield from check(limits.POOL_PAUSED, pool.paused, words, **stopped)
    if not pool.paused and not pool.workers_ready:
        yield from check(
            limits.NO_WORKER,
            pool.waiting,
            words,
            mild="being started" in words["why"] or "will be started" in words["why"],
            since=state.at_s - pool.oldest_wait_s,
            pool=pool.pool,
        )
    elif not pool.paused:
        yield from _long_wait(pool, state)
    if pool.max_depth and pool.lanes:
        lane = max(pool.lanes, key=lambda lane: lane.waiting)
        yield from check(
            limits.QUEUE_FULL,
            lane.waiting / pool.max_depth,
            {"pool": pool.pool, "lane": lane.lane, "jobs": lane.waiting, "most": pool.max_depth},
            pool=pool.pool,
        )
    if pool.scale is not None and pool.scale["silent"]:
        # The autoscaler's own limit is longer where its ticks are rare.
        yield from check(
            limits.AUTOSCALER_SILENT,
            pool.scale["age_s"],
            {"pool": pool.pool, "silent": duration(pool.scale["age_s"])},
            since=pool.scale["decided_at"],
            pool=pool.pool,
        )


def _long_wait(pool: PoolOverview, state: FleetState) -> Iterator[Problem]:
    wait_s, new_s, scale = pool.oldest_urgent_s, pool.estimated_wait_s, pool.scale
    capped = scale is not None and not scale["silent"] and scale["wanted"] >= scale["most"]
    words = {
        "pool": pool.pool,
        "wait": duration(wait_s),
        "waiting": _wait(pool.waiting),
        "busy": pool.busy,
        "slots": pool.slots,
        "estimate": "" if new_s is None else f" A new job waits about {duration(new_s)}.",
        "limit": f" The autoscaler is at its limit of {scale['most']} workers."
        if scale is not None and capped
        else "",
    }
    yield from check(limits.LONG_WAIT, wait_s, words, since=state.at_s - wait_s, pool=pool.pool)


def _wait(count: int) -> str:
    return f"{count} job waits" if count == 1 else f"{count} jobs wait"
