"""The verdict: one sentence about the fleet, and since when its problems have been there. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.ops.overview.fleet_state import FleetState
from gateway.ops.overview.problem import PROBLEM, WARNING, Problem
from shared.platform.durations import duration

_RECOVERED_KEPT_S = 3600.0
_MOST_RECOVERED = 20
OK = "ok"


def sentence(state: FleetState, problems: Sequence[Problem]) -> str:
    """What the ribbon says: the worst problem, or how busy the healthy fleet is."""
    if problems:
        worst = problems[0]
        others = sum(problem.level == worst.level for problem in problems) - 1
        more = f" And {others} more {_named(worst.level, others)}." if others else ""
        return worst.sentence + more
    if not state.workers:
        return "No worker runs. Jobs can be submitted; they wait for a worker."
    if not state.workers_ready:
        starting = sum(pool.workers_starting for pool in state.pools)
        return f"No worker is ready yet: {_workers(starting)} starting. No job waits."
    oldest_s = max((pool.oldest_s for pool in state.pools), default=0.0)
    wait = f"oldest wait {duration(oldest_s)}" if state.waiting else "nothing waits"
    workers = _workers(state.workers_ready)
    return f"Healthy. {workers}, {state.busy} of {state.slots} slots busy, {wait}."


def level(problems: Sequence[Problem]) -> str:
    """`ok`, `warning` or `problem`: the worst problem's."""
    levels = {problem.level for problem in problems}
    return PROBLEM if PROBLEM in levels else WARNING if WARNING in levels else OK


class ProblemLog:
    """Since when each problem has been there, and which have ended within the last hour."""

    def __init__(self) -> None:
        self._current: dict[tuple[str, str, str], Problem] = {}
        self._recovered: list[dict[str, Any]] = []

    def update(self, problems: Sequence[Problem], now_s: float) -> list[Problem]:
        """The same problems, each with the time since when it has been there."""
        before, self._current = self._current, {}
        for problem in problems:
            known = before.get(problem.key)
            since = problem.since
            if since is None or (known and known.since is not None and known.since < since):
                since = known.since if known else now_s
            self._current[problem.key] = problem._replace(since=since)
        for key, problem in before.items():
            if key not in self._current:
                self._recovered.append(_recovered(problem, now_s))
        kept = [each for each in self._recovered if now_s - each["ended"] < _RECOVERED_KEPT_S]
        self._recovered = kept[-_MOST_RECOVERED:]
        return list(self._current.values())

    @property
    def recovered(self) -> list[dict[str, Any]]:
        """The problems that have ended, the newest first."""
        return self._recovered[::-1]


def verdict_object(
    state: FleetState, problems: Sequence[Problem], recovered: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The verdict as the API shows it."""
    worst = level(problems)
    since = [p.since for p in problems if p.level == worst and p.since is not None]
    return {
        "level": worst,
        "sentence": sentence(state, problems),
        "since": min(since, default=None),
        "problems": [problem.to_object() for problem in problems],
        "recovered": list(recovered),
    }


def _recovered(problem: Problem, now_s: float) -> dict[str, Any]:
    since = problem.since if problem.since is not None else now_s
    return {
        "kind": problem.kind,
        "pool": problem.pool,
        "worker": problem.worker,
        "since": since,
        "ended": now_s,
        "sentence": f"Ended after {duration(now_s - since)}: {problem.sentence}",
    }


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def _named(worst: str, count: int) -> str:
    return worst if count == 1 else f"{worst}s"
