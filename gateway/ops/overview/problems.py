"""What is wrong with the fleet: cause, since when, effect, and the first thing to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.ops.overview.fleet_state import FleetState, WorkerView
from gateway.ops.overview.pool_problems import of_pool
from gateway.ops.overview.problem import PROBLEM, WARNING, Problem
from shared.fleet.registry import HEARTBEAT_S
from shared.job.states import WorkerState
from shared.platform.durations import duration

_SILENT_S = 3 * HEARTBEAT_S
_LOADS_LONG_S = 1200.0
_MEMORY_HIGH, _MEMORY_FULL = 0.85, 0.95
_FAILED_SHARE, _FAILED_LEAST = 0.05, 3
_LETTER_IS_NEW_S = 3600.0


def find_problems(state: FleetState) -> list[Problem]:
    """All problems, the worst first."""
    found = [*_of_redis(state), *_of_the_gateway(state), *_of_workers(state)]
    for pool in state.pools:
        found += of_pool(pool, state)
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
    had = f", {info.jobs} at its last heartbeat," if info.jobs else ""
    now = "1 waits" if waiting == 1 else f"{waiting} wait"
    jobs = f"Its jobs{had} went back to the queue; {now} now."
    ago = f"{duration(now_s - since_s)} ago"
    what = f"failed {ago}: {info.failure}." if info.failure else f"was lost {ago}."
    return Problem(
        "worker_lost",
        PROBLEM,
        f"The worker {info.id} {what} {jobs} Start it again, or let its supervisor do it.",
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
