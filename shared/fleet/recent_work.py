"""What the engines of a pool have done lately: workers keep and announce it, gateways add it up.

A job keeps its slot for so many steps of the engine as it has tokens to generate. A step takes a
time of its own, and more for each token of the prompts that are computed in it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul

from shared.fleet.registry import WorkerInfo

WINDOW_S = 60.0
"""Time constant of the moving sums."""
LENGTHS = tuple(2 ** (n / 4) for n in range(70))
"""Upper edges of the buckets of job lengths, in steps."""
_MIDDLES = (LENGTHS[0], *((low + high) / 2 for low, high in pairwise(LENGTHS)))
_LEAST = 1e-3
"""Smaller moving sums count as 0, and no job takes a shorter time, in seconds."""
_LEAST_PARALLEL = 1e-6
"""Below it the prompts of all readings are proportional to the steps: their cost is not known."""


def length_bucket(steps: float) -> int:
    """The bucket of a job that took so many steps."""
    return min(bisect_left(LENGTHS, steps), len(LENGTHS) - 1)


class RecentWork:
    """Moving sums of one engine."""

    def __init__(self) -> None:
        self.lengths = [0.0] * len(LENGTHS)
        """Jobs that have ended, by how many steps they ran."""
        self._ended = [0] * len(LENGTHS)  # since the last `update`
        self._sums = [0.0] * 8
        self._before: Sequence[float] = (0.0,) * 4
        self._at_s = 0.0

    def ended(self, steps: int) -> None:
        """A job has ended after so many steps."""
        self._ended[length_bucket(steps)] += 1

    def update(
        self, at_s: float, prompt_tokens: float, steps: float, prefilled: float, busy_s: float
    ) -> tuple[float, ...]:
        """Add what was done since the last call; returns the sums (`WorkerInfo.recent`).

        `at_s`: now, a monotonic time in seconds. The others are totals, as of WorkerInfo and
        `EngineSteps`: prompts of ended jobs, steps, prompt tokens computed, seconds in steps.
        """
        now = (prompt_tokens, steps, prefilled, busy_s)
        prompts, s, p, t = (max(0.0, a - b) for a, b in zip(now, self._before, strict=True))
        # While no job ends, nothing is known about how long jobs take now.
        kept = math.exp((self._at_s - at_s) / WINDOW_S) if any(self._ended) else 1.0
        row = (prompts, s, t, s * s, s * p, p * p, s * t, p * t)
        self._sums = [kept * a + b for a, b in zip(self._sums, row, strict=True)]
        self.lengths = [kept * a + b for a, b in zip(self.lengths, self._ended, strict=True)]
        self._ended = [0] * len(LENGTHS)
        self._before, self._at_s = now, at_s
        return tuple(float(f"{each:.6g}") for each in self._sums)

    def sparse_lengths(self) -> dict[int, float]:
        """The buckets of `lengths` that are not empty."""
        return {n: round(each, 3) for n, each in enumerate(self.lengths) if each > _LEAST}


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
    """On so many jobs that rests. 0: only their time is known, and a step is a second of it."""

    @classmethod
    def of_job(cls, job_s: float) -> Pace:
        """Where only the mean time of a job is known."""
        return cls(1.0, 0.0, 1.0, max(job_s, _LEAST), 0.0)

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


def pace_of(workers: Sequence[WorkerInfo]) -> Pace | None:
    """The pace of a pool's workers; None as long as none of their jobs has ended."""
    lengths = [0.0] * len(LENGTHS)
    for worker in workers:
        for bucket, jobs in worker.lengths.items():
            if 0 <= bucket < len(LENGTHS):
                lengths[bucket] += jobs
    known = [worker.recent for worker in workers if len(worker.recent) == 8]
    prompts, s, t, ss, sp, pp, st, pt = map(sum, zip(*known, strict=True)) if known else (0.0,) * 8
    ended = sum(lengths)
    if not s or not t or not ended:  # of an older release, or no job has ended
        finished = sum(worker.finished for worker in workers)
        seconds = sum(worker.job_seconds for worker in workers)
        return Pace.of_job(seconds / finished) if finished else None
    # Least squares, unless the prompts are in proportion to the steps.
    parallel = ss * pp - sp * sp
    step_s, token_s = t / s, 0.0
    if parallel > _LEAST_PARALLEL * ss * pp:
        fit = (st * pp - pt * sp) / parallel, (pt * ss - st * sp) / parallel
        if fit[0] > 0 and fit[1] >= 0:
            step_s, token_s = fit
    job_steps = sum(map(mul, lengths, _MIDDLES)) / ended
    longer = tuple(1 - each / ended for each in accumulate(lengths))
    return Pace(step_s, token_s, t / s, job_steps, prompts / ended, longer, ended)
