"""What the tenants of a worker's jobs have been served, as their levels count it (fair_shares.py).

A claim charges what a job is expected to cost. The difference to what it has cost so far, and at
its end, is reported with renewals, and with claims where several tenants wait. A report that is
lost with a connection is not repeated: levels forget it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from shared.job.fair_shares import FIRST_TOKENS, NOTHING, OUTPUT_COST, Account, ShareRules, cost
from shared.job.job import LeasedJob
from worker.core.job_run import JobRun

_HISTORY = 20
"""Jobs that the means are made of, about: the latest."""
_REPORTS_PER_HALF_LIFE = 20
_REPORT_S = 0.25
"""Between two reports of the jobs that run, where levels never halve."""
_SHARED_S = 1.0
"""So long after a claim of one of several tenants' jobs they count as several."""


@dataclass(slots=True)
class _Charged:
    """What a tenant was charged for a job so far."""

    cost: float
    """For what has been made."""
    ahead: float
    """For what was expected at the last charge, over the weight. It halves in Redis since."""
    at: float
    """When that was, on the monotonic clock."""


class Charges:
    """The charges of one worker. `runs` are its jobs, by id."""

    def __init__(self, pool: str, runs: Mapping[str, JobRun], rules: ShareRules) -> None:
        self._pool = pool
        self._runs = runs
        self._ahead = rules.ahead * OUTPUT_COST
        self._half_life_s = rules.half_life_s
        # Those that end are reported with the next claim.
        self._report_s = rules.half_life_s / _REPORTS_PER_HALF_LIFE or _REPORT_S
        self.prompt_tokens = FIRST_TOKENS
        """Mean of the latest jobs."""
        self._output_tokens = FIRST_TOKENS  # likewise
        self._jobs = 0
        self._charged: dict[JobRun, _Charged] = {}  # those that run
        self._ended: dict[int, defaultdict[Account, float]] = {}
        self._reported_at: dict[int, float] = {}
        self._shared_until = 0.0

    @property
    def expected_cost(self) -> float:
        """What is charged as a job is claimed."""
        return self.prompt_tokens + self._ahead * self._output_tokens

    @property
    def tenants_share(self) -> bool:
        """Jobs of several tenants waited at the last claims."""
        return time.monotonic() <= self._shared_until

    def started(self, job: LeasedJob) -> None:
        """A job begins."""
        if job.share.charged:
            self._shared_until = time.monotonic() + _SHARED_S

    def ended(self, run: JobRun, *, released: bool) -> None:
        """A run has ended; `released`: its job has not, so that it is no example."""
        buffer = run.buffer
        if not released:
            self._jobs = min(_HISTORY, self._jobs + 1)
            self.prompt_tokens += (buffer.prompt_tokens - self.prompt_tokens) / self._jobs
            self._output_tokens += (buffer.completion_tokens - self._output_tokens) / self._jobs
        self._charge(run, 0.0, self._ended.setdefault(run.job.shard, defaultdict(float)))
        self._charged.pop(run, None)

    def take(self, shard: int) -> Mapping[Account, float]:
        """What is to be added to the levels in a shard, once."""
        self._reported_at[shard] = time.monotonic()
        charges = self._ended.pop(shard, None) or defaultdict(float)
        for run in self._runs.values():
            if run.job.shard == shard:
                left = max(0.0, self._output_tokens - run.buffer.new_tokens)
                self._charge(run, self._ahead * left, charges)
        return charges

    def take_with_claim(self, shard: int) -> Mapping[Account, float]:
        """As `take`, where several tenants wait; mostly only of the jobs that have ended."""
        if not self.tenants_share:
            return NOTHING
        if time.monotonic() > self._reported_at.get(shard, 0.0) + self._report_s:
            return self.take(shard)
        return self._ended.pop(shard, NOTHING)

    def _charge(self, run: JobRun, expected: float, charges: defaultdict[Account, float]) -> None:
        job = run.job
        # What earlier attempts have made was charged as they made it.
        prompt_tokens = run.buffer.prompt_tokens if job.generation == 1 else 0
        made = cost(prompt_tokens, run.buffer.new_tokens)
        before = self._charged.get(run) or _Charged(0.0, job.share.charged, run.started)
        now, weight = time.monotonic(), job.share.weight
        # Less than was charged: else a tenant with short answers would be paid for each.
        left = before.ahead * self._halved(now - before.at)
        charge = (made - before.cost + expected) / weight - left
        charges[Account(self._pool, job.share.lane, job.tenant)] += charge
        self._charged[run] = _Charged(made, expected / weight, now)

    def _halved(self, seconds: float) -> float:
        """What is left of 1 after this time."""
        return 2 ** (-seconds / self._half_life_s) if self._half_life_s else 1.0
