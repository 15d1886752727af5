"""The verdict: one sentence about the fleet, and since when its problems have been there. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.ops.overview.models import FleetState, Problem, Recovered, Verdict
from shared.fleet.limits import Level
from shared.platform.durations import duration

_RECOVERED_KEPT_S = 3600.0
_MOST_RECOVERED = 20


def verdict(
    state: FleetState, problems: Sequence[Problem], recovered: Sequence[Recovered] = ()
) -> Verdict:
    """`problems`: the worst first."""
    level = problems[0].level if problems else Level.OK
    worst = [problem for problem in problems if problem.level is level]
    return Verdict(
        level=level,
        sentence=_wrong(worst) if worst else _healthy(state),
        since=min((problem.since for problem in worst if problem.since is not None), default=None),
        problems=problems,
        recovered=recovered,
    )


class ProblemLog:
    """Since when each problem has been there, and which have ended within the last hour."""

    def __init__(self) -> None:
        self._current: dict[tuple[str, str, str], Problem] = {}
        self._recovered: list[Recovered] = []

    def update(self, problems: Sequence[Problem], now_s: float) -> list[Problem]:
        """The same problems, each with the time since when it has been there."""
        before, self._current = self._current, {}
        for problem in problems:
            known = before.get(problem.key)
            times = (problem.since, known.since if known else None)
            since = min((each for each in times if each is not None), default=now_s)
            self._current[problem.key] = problem.model_copy(update={"since": since})
        ended = [each for key, each in before.items() if key not in self._current]
        self._recovered += [_recovered(problem, now_s) for problem in ended]
        kept = [each for each in self._recovered if now_s - each.ended < _RECOVERED_KEPT_S]
        self._recovered = kept[-_MOST_RECOVERED:]
        return list(self._current.values())

    @property
    def recovered(self) -> list[Recovered]:
        """The problems that have ended, the newest first."""
        return self._recovered[::-1]


def _wrong(worst: Sequence[Problem]) -> str:
    sentence, others = worst[0].sentence, len(worst) - 1
    if not others:
        return sentence
    return f"{sentence} And {others} more {worst[0].level}{'s' if others > 1 else ''}."


def _healthy(state: FleetState) -> str:
    """How busy the fleet is."""
    ready = sum(pool.workers_ready for pool in state.pools)
    if not state.workers:
        return "No worker runs. Jobs can be submitted; they wait for a worker."
    if not ready:
        starting = sum(pool.workers_starting for pool in state.pools)
        return f"No worker is ready yet: {_workers(starting)} starting. No job waits."
    busy, slots = (sum(getattr(p, name) for p in state.pools) for name in ("busy", "slots"))
    oldest_s = max((pool.oldest_wait_s for pool in state.pools), default=0.0)
    waits = any(pool.waiting for pool in state.pools)
    wait = f"oldest wait {duration(oldest_s)}" if waits else "nothing waits"
    return f"Healthy. {_workers(ready)}, {busy} of {slots} slots busy, {wait}."


def _recovered(problem: Problem, now_s: float) -> Recovered:
    since = now_s if problem.since is None else problem.since
    return Recovered(
        kind=problem.kind,
        pool=problem.pool,
        worker=problem.worker,
        since=since,
        ended=now_s,
        sentence=f"Ended after {duration(now_s - since)}: {problem.sentence}",
    )


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
