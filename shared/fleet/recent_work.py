"""What the engines of each pool have done lately, from counters that workers announce. Pure.

A job keeps its slot for so many steps of the engine as it has tokens to generate. A step takes a
time of its own, and more for each token of the prompts that are computed in it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import add, mul, sub
from typing import TypeAlias

from shared.fleet.registry import WorkerInfo

WINDOW_S = 60.0
"""Time constant of the moving sums."""
LENGTHS = tuple(2 ** (n / 4) for n in range(70))
"""Upper edges of the buckets of job lengths, in steps."""
_MIDDLES = (LENGTHS[0], *((low + high) / 2 for low, high in pairwise(LENGTHS)))
_LEAST_JOB_S = 0.001
_LEAST_PARALLEL = 1e-6
"""Below it the prompts of all readings are proportional to the steps: their cost is not known."""

_Counters: TypeAlias = tuple[float, ...]


def length_bucket(steps: int) -> int:
    """The bucket of a job that took so many steps."""
    return min(bisect_left(LENGTHS, steps), len(LENGTHS) - 1)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the engines of a pool are, and how long its jobs."""

    step_s: float
    """Seconds of a step without prompts."""
    token_s: float
    """Seconds that a token of a prompt adds."""
    whole_step_s: float
    """Mean seconds of a step, prompts included."""
    job_steps: float
    """Mean length of a job."""
    prompt_tokens: float
    """Mean prompt of a job."""
    longer: tuple[float, ...] = ()
    """The part of the jobs that is longer than each of `LENGTHS`."""
    jobs: float = 0.0
    """On so many jobs that rests."""

    @classmethod
    def of_job(cls, job_s: float) -> Pace:
        """Where only the mean time of a job is known: steps of a second."""
        return cls(1.0, 0.0, 1.0, max(job_s, _LEAST_JOB_S), 0.0)

    @property
    def job_s(self) -> float:
        """Mean time of a job in its slot."""
        return self.job_steps * self.whole_step_s

    def survival(self, steps: float) -> float:
        """The part of the jobs that is longer than `steps`.

        As if one more job had been seen, of any length: one that has run longer than all others
        may take about as long again.
        """
        unseen = (1 + steps / self.job_steps) ** -2
        return (self.jobs * self._seen(steps) + unseen) / (self.jobs + 1)

    def _seen(self, steps: float) -> float:
        at = bisect_right(LENGTHS, steps)
        if not self.longer or at == len(LENGTHS):
            return 0.0
        if not at:
            return 1.0  # no job takes less than a step
        low, before = LENGTHS[at - 1], self.longer[at - 1]
        return before + (self.longer[at] - before) * (steps - low) / (LENGTHS[at] - low)


class RecentWork:
    """All that was done before the first reading counts as one job."""

    def __init__(self) -> None:
        self._counters: dict[str, _Counters] = {}  # by worker
        self._sums: dict[str, list[float]] = {}  # by pool
        self._read_at_s: float | None = None

    def update(self, workers: Sequence[WorkerInfo], at_s: float) -> None:
        """Add the workers' counters, read at `at_s`, a monotonic time in seconds."""
        first = self._read_at_s is None
        passed_s = 0.0 if self._read_at_s is None else at_s - self._read_at_s
        self._read_at_s = at_s
        counters = {worker.id: _counters(worker) for worker in workers}
        done: dict[str, list[_Counters]] = {}
        for worker in workers:
            now = counters[worker.id]
            before = self._counters.get(worker.id, _NOTHING)
            if any(a > b for a, b in zip(before, now, strict=True)):
                before = _NOTHING  # the worker was restarted
            done.setdefault(worker.pool, []).append(tuple(map(sub, now, before)))
        self._counters = counters
        for pool, rows in done.items():
            jobs = sum(row[0] for row in rows)
            # While no job ends, nothing is known about how long jobs take now.
            kept = math.exp(-passed_s / WINDOW_S) if jobs else 1.0
            sums = [kept * each for each in self._sums.get(pool, _NO_SUMS)]
            for row in rows:
                sums = list(map(add, sums, _to_sum(row)))
            self._sums[pool] = [each / jobs for each in sums] if first and jobs else sums

    def pace(self, pool: str) -> Pace | None:
        """That of a pool; None as long as none of its jobs has ended."""
        jobs, job_seconds, prompts, s, t, ss, sp, pp, st, pt, *lengths = self._sums.get(
            pool, _NO_SUMS
        )
        ended = sum(lengths)
        if not jobs:
            return None
        if not s or not t or not ended:  # workers of an older release
            return Pace.of_job(job_seconds / jobs)
        # Least squares, unless the prompts are in proportion to the steps.
        parallel = ss * pp - sp * sp
        step_s, token_s = t / s, 0.0
        if parallel > _LEAST_PARALLEL * ss * pp:
            fit = (st * pp - pt * sp) / parallel, (pt * ss - st * sp) / parallel
            if fit[0] > 0 and fit[1] >= 0:
                step_s, token_s = fit
        job_steps = sum(map(mul, lengths, _MIDDLES)) / ended
        longer = tuple(1 - each / ended for each in accumulate(lengths))
        return Pace(step_s, token_s, t / s, job_steps, prompts / jobs, longer, ended)


def _counters(worker: WorkerInfo) -> _Counters:
    lengths = worker.lengths[: len(LENGTHS)]
    return (
        worker.finished,
        worker.job_seconds,
        worker.prompt_tokens,
        worker.steps,
        worker.prefilled_tokens,
        worker.busy_s,
        *lengths,
        *(0,) * (len(LENGTHS) - len(lengths)),
    )


def _to_sum(done: _Counters) -> _Counters:
    """What is summed of a reading: s steps with p prompt tokens in t seconds."""
    jobs, job_seconds, prompts, s, p, t, *lengths = done
    return (jobs, job_seconds, prompts, s, t, s * s, s * p, p * p, s * t, p * t, *lengths)


_NOTHING: _Counters = (0.0,) * (6 + len(LENGTHS))
_NO_SUMS = _to_sum(_NOTHING)
