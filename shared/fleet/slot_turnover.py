"""When the slots of a pool become free: how many, from the last heartbeats on. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from shared.fleet.recent_work import LENGTHS, Pace, length_bucket
from shared.fleet.registry import HEARTBEAT_S, WorkerInfo
from shared.job.states import WorkerState

_BINS = 40
_MEANS = 2.5
"""The bins cover this many mean job lengths. After that a slot becomes free once per mean job."""


class SlotTurnover:
    """How many slots become free, if running jobs and their successors take as long as others."""

    def __init__(self, pace: Pace, workers: Sequence[WorkerInfo]) -> None:
        """`workers`: those that serve, as of their heartbeats."""
        self.pace = pace
        self._workers = len(workers)
        running = [each for worker in workers for each in _running(worker)]
        if not pace.jobs:
            running = [(None, slots) for _, slots in running]  # ages are in the engines' steps
        self._bin = _MEANS * pace.job_steps / _BINS  # steps
        ages = [0 if age is None else age for age, _ in running]
        self._unlike = min(ages, default=0) > _MEANS * pace.job_steps
        """All jobs run for much longer than those that have ended lately: nothing is known."""
        self.slots = sum(slots for _, slots in running)
        """How many there are."""
        self._freed = [0.0, *accumulate(self._ends(running))]  # at the edge of each bin

    def wait_s(self, position: int, read_s_ago: float) -> float | None:
        """Seconds until the `position`-th slot from now is free; None: not known.

        `read_s_ago`: seconds since the heartbeats were read, whose mean age was half of the time
        between two.
        """
        if not self.slots or self._unlike:
            return None
        pace = self.pace
        now = (read_s_ago + HEARTBEAT_S / 2) / pace.whole_step_s
        steps = max(0.0, self._steps(self._freed_by(now) + position - 0.5) - now)
        prompts = position * pace.prompt_tokens / self._workers
        # A job starts at the end of a step, on average half of one later.
        rest_s = pace.whole_step_s / 2 if pace.jobs else 0.0
        return steps * pace.step_s + prompts * pace.token_s + rest_s

    def freed(self, after_s: float) -> float:
        """How many slots become free within so many seconds."""
        return self._freed_by(after_s / self.pace.whole_step_s)

    def _ends(self, running: Sequence[tuple[int | None, float]]) -> list[float]:
        """How many jobs end in each bin; `running`: (steps so far, None: not known; jobs)."""
        by_age = defaultdict[float | None, float](float)
        for age, jobs in running:
            by_age[None if age is None else self._rounded(age)] += jobs
        longer = [self.pace.survival(n * self._bin) for n in range(_BINS + 1)]
        length = [before - after for before, after in pairwise(longer)]
        ends = [0.0] * _BINS
        for known, jobs in by_age.items():
            if known is None:  # it may have run for any part of its length
                left = [(before + after) / 2 for before, after in pairwise(longer)]
                share = self._bin / self.pace.job_steps
            else:
                at = [self.pace.survival(known + n * self._bin) for n in range(_BINS + 1)]
                left = [before - after for before, after in pairwise(at)]
                share = 1 / at[0]
            for n in range(_BINS):
                ends[n] += jobs * share * left[n]
        # A job that starts in bin m and takes k bins ends in bin m + k or m + k + 1.
        both = [length[0] / 2, *((a + b) / 2 for a, b in pairwise(length))]
        for n in range(_BINS):
            ends[n] += sum(ends[m] * both[n - m] for m in range(n))
            ends[n] /= 1 - both[0]
        return ends

    def _rounded(self, age: int) -> float:
        """This age in steps, rounded, so that few different ones are computed."""
        bins = int(age / self._bin)
        return (bins + 0.5) * self._bin if bins < _BINS else LENGTHS[length_bucket(age)]

    def _freed_by(self, steps: float) -> float:
        at = min(int(steps / self._bin), _BINS - 1)
        over = steps / self._bin - _BINS
        if over >= 0:
            return self._freed[-1] + over * self._bin * self.slots / self.pace.job_steps
        return self._freed[at] + (self._freed[at + 1] - self._freed[at]) * (steps / self._bin - at)

    def _steps(self, freed: float) -> float:
        """After how many steps so many slots were freed."""
        over = freed - self._freed[-1]
        if over >= 0:
            return _BINS * self._bin + over * self.pace.job_steps / self.slots
        at = max(1, bisect_left(self._freed, freed))
        low, high = self._freed[at - 1 : at + 1]
        return self._bin * (at - 1 + (freed - low) / (high - low))


def _running(worker: WorkerInfo) -> Iterator[tuple[int | None, float]]:
    """The slots of a worker: (steps that their jobs have run, None: not known; slots)."""
    if worker.state is WorkerState.READY and worker.slots > worker.jobs:
        # A job waits only while no slot is free, so these were taken after the heartbeat.
        yield 0, worker.slots - worker.jobs
    ages = worker.job_steps or (None,) * worker.jobs
    for age in ages:
        yield age, worker.jobs / len(ages)
