"""What is wrong with the fleet: cause, since when, effect, and the first thing to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from gateway.jobs.durations import duration
from gateway.overview.fleet_state import FleetState, PoolState, WorkerView
from shared.fleet.registry import HEARTBEAT_S
from shared.protocol.states import WorkerState

WARNING, PROBLEM = "warning", "problem"

LONG_WAIT_S = 30.0
"""A job outside the lane `flex` that waits longer is a problem to show."""
_SILENT_S = 3 * HEARTBEAT_S
_LOADS_LONG_S = 1200.0
_MEMORY_HIGH, _MEMORY_FULL = 0.85, 0.95
_LANE_HIGH = 0.9
_FAILED_SHARE, _FAILED_LEAST = 0.05, 3
_LETTER_IS_NEW_S = 3600.0
_RUNBOOKS = "compose/observability/runbooks.md#"


class Action(NamedTuple):
    """A request that mends something, as a button can offer it."""

    text: str
    method: str
    path: str
    body: dict[str, Any]


class Problem(NamedTuple):
    """Something that is wrong. `since`: Unix seconds; None: from the first time it is found."""

    kind: str
    level: str
    sentence: str
    since: float | None = None
    pool: str = ""
    worker: str = ""
    action: Action | None = None
    runbook: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """The same problem found again has the same key."""
        return self.kind, self.pool, self.worker

    def to_object(self) -> dict[str, Any]:
        """As the API shows it."""
        fields = self._asdict()
        fields["action"] = self.action._asdict() if self.action else None
        fields["runbook"] = _RUNBOOKS + self.runbook if self.runbook else ""
        return fields


def find_problems(state: FleetState) -> list[Problem]:
    """All problems, the worst first."""
    found = [*_of_redis(state), *_of_the_gateway(state), *_of_workers(state)]
    for pool in state.pools:
        found += _of_pool(pool, state)
    found += _of_jobs(state)
    return sorted(found, key=lambda problem: problem.level != PROBLEM)


def _of_redis(state: FleetState) -> Iterator[Problem]:
    redis = state.redis
    if redis.error:
        yield Problem(
            "redis_unavailable",
            PROBLEM,
            f"Redis can't be read: {redis.error[:200]}. New requests are refused; the figures "
            "below are the last known ones.",
            redis.since_s,
            runbook="flotillaredisnotwritable",
        )
    if redis.eviction_problem:
        sentence = f"Redis may delete jobs: {redis.eviction_problem}."
        yield Problem("redis_evicts", PROBLEM, sentence, runbook="flotillaredisevicts")
    if redis.fullest >= _MEMORY_HIGH:
        full = redis.fullest >= _MEMORY_FULL
        effect = "writes fail soon" if full else "at 100 % it refuses writes"
        yield Problem(
            "redis_memory",
            PROBLEM if full else WARNING,
            f"A Redis server uses {redis.fullest:.0%} of its memory; {effect}.",
            runbook="flotillaredismemoryhigh",
        )


def _of_the_gateway(state: FleetState) -> Iterator[Problem]:
    for kind, sentence in state.gateway_problems.items():
        if sentence and not (state.redis.error and kind == "fleet"):
            yield Problem(
                f"gateway_{kind}",
                PROBLEM,
                f"This gateway is not healthy: {sentence[:300]}.",
                runbook="flotillabackgroundtaskended",
            )


def _of_workers(state: FleetState) -> Iterator[Problem]:
    waiting = {pool.pool: pool.waiting for pool in state.pools}
    for worker in state.workers:
        if worker.lost_since_s is not None:
            yield _lost(worker, worker.lost_since_s, waiting.get(worker.info.pool, 0), state.at_s)
        elif worker.info.state is WorkerState.STARTING:
            if worker.age_s > _LOADS_LONG_S:
                yield _loads_long(worker, state.at_s)
        elif worker.age_s > _SILENT_S:
            yield _silent(worker, state.at_s)


def _lost(worker: WorkerView, since_s: float, waiting: int, now_s: float) -> Problem:
    info = worker.info
    jobs = "It ran no jobs."
    if info.jobs:
        moved = "job was" if info.jobs == 1 else "jobs were"
        jobs = f"About {info.jobs} {moved} given back to the queue; {waiting} wait now."
    return Problem(
        "worker_lost",
        PROBLEM,
        f"The worker {info.id} was lost {duration(now_s - since_s)} ago. {jobs} Start it again, or "
        "let its supervisor do it.",
        since_s,
        info.pool,
        info.id,
        runbook="flotillaworkerslost",
    )


def _silent(worker: WorkerView, now_s: float) -> Problem:
    info = worker.info
    return Problem(
        "worker_silent",
        PROBLEM,
        f"The worker {info.id} has not announced itself for {duration(worker.age_s)}: its process "
        "or its machine stands still. Its jobs move to other workers when their leases end.",
        now_s - worker.age_s,
        info.pool,
        info.id,
        runbook="flotillaworkerslost",
    )


def _loads_long(worker: WorkerView, now_s: float) -> Problem:
    info = worker.info
    return Problem(
        "worker_loads_long",
        WARNING,
        f"The worker {info.id} has loaded its model for {duration(worker.age_s)}; see its log.",
        now_s - worker.age_s,
        info.pool,
        info.id,
    )


def _of_pool(pool: PoolState, state: FleetState) -> Iterator[Problem]:
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


def _of_jobs(state: FleetState) -> Iterator[Problem]:
    failed = state.recent.get("failed", 0)
    ended = failed + max(0, state.recent.get("completed", 0))
    if failed >= _FAILED_LEAST and failed >= _FAILED_SHARE * ended:
        yield Problem(
            "jobs_fail",
            PROBLEM,
            f"{failed} of the {ended} jobs that ended in the last seconds failed; the jobs with "
            "`state:failed since:1h` have their errors.",
            runbook="flotillajobsfail",
        )
    if state.newest_letter_s is not None and state.at_s - state.newest_letter_s < _LETTER_IS_NEW_S:
        letters = "is 1 dead letter" if state.dead_letters == 1 else "are dead letters"
        count = "" if state.dead_letters == 1 else f" ({state.dead_letters})"
        yield Problem(
            "dead_letters",
            WARNING,
            f"There {letters}{count}, the newest {duration(state.at_s - state.newest_letter_s)} "
            "old: replay or drop them.",
            state.newest_letter_s,
            runbook="flotilladeadletters",
        )


def _wait(count: int) -> str:
    return f"{count} job waits" if count == 1 else f"{count} jobs wait"
