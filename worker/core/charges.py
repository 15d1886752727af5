"""What the tenants of a worker's jobs have been served, as their levels count it (fair_shares.py).

A claim charges what a job is expected to cost; the renewals of the leases report the difference to
what it has cost so far, and at its end. A report that is lost with a connection is not repeated:
levels forget it within a minute.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from shared.job.fair_shares import EXPECTED_COST, OUTPUT_COST, Account, cost
from worker.core.job_run import JobRun

_HISTORY = 20
"""Jobs that the mean is made of, about: the latest."""


class Charges:
    """The charges of one worker. `runs` are its jobs, by id."""

    def __init__(self, pool: str, runs: Mapping[str, JobRun]) -> None:
        self.expected_cost = EXPECTED_COST
        """Of a new job: its prompt and half of its answer. The rest is charged as it comes."""
        self._expected_output = EXPECTED_COST / OUTPUT_COST
        self._pool = pool
        self._runs = runs
        self._jobs = 0
        self._charged: dict[JobRun, float] = {}  # those that run: so far, over the weight
        self._ended: dict[int, defaultdict[Account, float]] = {}

    def ended(self, run: JobRun, *, released: bool) -> None:
        """A run has ended; `released`: its job has not, so that it is no example."""
        if not released:
            self._jobs = min(_HISTORY, self._jobs + 1)
            expected = run.buffer.prompt_tokens + run.buffer.completion_tokens
            self.expected_cost += (expected - self.expected_cost) / self._jobs
            difference = run.buffer.completion_tokens - self._expected_output
            self._expected_output += difference / self._jobs
        self._charge(run, 0.0, self._ended.setdefault(run.job.shard, defaultdict(float)))
        self._charged.pop(run, None)

    def take(self, shard: int) -> dict[Account, float]:
        """What is to be added to the levels in a shard, once."""
        charges = self._ended.pop(shard, None) or defaultdict(float)
        for run in self._runs.values():
            if run.job.shard == shard:
                left = max(0.0, self._expected_output - run.buffer.new_tokens)
                self._charge(run, left, charges)
        return charges

    def _charge(self, run: JobRun, expected: float, charges: defaultdict[Account, float]) -> None:
        job = run.job
        if not job.share.lane:  # submitted by a gateway of the release before
            return
        # What earlier attempts have made was charged as they made it.
        prompt_tokens = run.buffer.prompt_tokens if job.generation == 1 else 0
        now = (cost(prompt_tokens, run.buffer.new_tokens) + expected) / job.share.weight
        before = self._charged.get(run, job.share.charged)
        charges[Account(self._pool, job.share.lane, job.tenant)] += now - before
        self._charged[run] = now
