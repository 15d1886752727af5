"""What is wrong with a pool: no worker, a long queue, or an operator has stopped it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.ops.overview.fleet_state import FleetState, PoolState
from gateway.ops.overview.problem import PROBLEM, WARNING, Action, Problem
from shared.platform.durations import duration

LONG_WAIT_S = 30.0
"""A job outside the lane `flex` that waits longer is a problem to show."""
_LANE_HIGH = 0.9


def of_pool(pool: PoolState, state: FleetState) -> Iterator[Problem]:
    """What is wrong with one pool."""
    since_s = state.at_s - pool.oldest_s if pool.waiting else None
    resume = Action(f"Resume {pool.pool}", "POST", f"/admin/pools/{pool.pool}/resume", {})
    if pool.intake_stopped:
        sentence = (
            f"An operator has stopped the intake of the pool {pool.pool}: new requests get 503."
        )
        yield Problem("intake_stopped", WARNING, sentence, pool=pool.pool, action=resume)
    if pool.paused:
        sentence = f"An operator has paused the pool {pool.pool}; {_wait(pool.waiting)}."
        yield Problem("pool_paused", WARNING, sentence, pool=pool.pool, action=resume)
    elif pool.waiting and not pool.workers_ready:
        why = pool.wait_reason or "no worker is ready"
        coming = "being started" in why or "will be started" in why
        yield Problem(
            "no_worker",
            WARNING if coming else PROBLEM,
            f"In the pool {pool.pool} {why}; {_wait(pool.waiting)}, the oldest for "
            f"{duration(pool.oldest_s)}.",
            since_s,
            pool.pool,
            runbook="flotillanoworker",
        )
    elif pool.oldest_urgent_s > LONG_WAIT_S:
        yield _long_wait(pool, state)
    if pool.max_depth:
        yield from _full_lanes(pool)
    if pool.suspects:
        yield Problem(
            "suspects",
            WARNING,
            f"In the pool {pool.pool} {_wait(pool.suspects)} to run alone, because at least two "
            "workers were lost with each of them.",
            pool=pool.pool,
            runbook="flotillaworkerflaps",
        )
    if pool.scale is not None and pool.scale_is_stale:
        silent_s = state.at_s - pool.scale.at_s
        yield Problem(
            "autoscaler_silent",
            WARNING,
            f"The autoscaler has decided nothing for {duration(silent_s)} for the pool "
            f"{pool.pool}.",
            pool.scale.at_s,
            pool.pool,
            runbook="flotillaautoscalestale",
        )


def _long_wait(pool: PoolState, state: FleetState) -> Problem:
    estimate = "" if pool.wait_s is None else f" A new job waits about {duration(pool.wait_s)}."
    limit = ""
    if pool.scale is not None and not pool.scale_is_stale:
        wanted, most = pool.scale.wanted, pool.scale.limits.max
        if wanted >= most:
            limit = f" The autoscaler is at its limit of {most} workers."
    return Problem(
        "long_wait",
        PROBLEM,
        f"The oldest job of the pool {pool.pool} has waited {duration(pool.oldest_urgent_s)}: "
        f"{_wait(pool.waiting)}, {pool.busy} of {pool.slots} slots are busy.{estimate}{limit}",
        state.at_s - pool.oldest_urgent_s,
        pool.pool,
        runbook="flotillawaittoolong",
    )


def _full_lanes(pool: PoolState) -> Iterator[Problem]:
    for lane in pool.lanes:
        if lane.waiting >= _LANE_HIGH * pool.max_depth:
            full = lane.waiting >= pool.max_depth
            effect = "new requests get 503" if full else "then new requests get 503"
            yield Problem(
                "queue_full",
                PROBLEM if full else WARNING,
                f"The lane {lane.lane} of the pool {pool.pool} has {lane.waiting} of "
                f"{pool.max_depth} jobs; {effect}.",
                pool=pool.pool,
                runbook="flotillaqueuefull" if full else "flotillaqueuenearlyfull",
            )


def _wait(count: int) -> str:
    return f"{count} job waits" if count == 1 else f"{count} jobs wait"
