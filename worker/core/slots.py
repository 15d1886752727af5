"""Slot accounting: which of the engine's slots are taken, counting jobs on their way into it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from worker.core.charges import Charges
from worker.core.claim_policy import ClaimDecision, SlotSnapshot, decide, free_slots
from worker.core.job_run import JobRun
from worker.engines.interface import Engine

_BYTES_PER_TOKEN = 4
"""Of a body whose prompt the engine has not counted yet: about."""


class SlotAccounting:
    """The slots of one engine. `runs` are the worker's jobs, by job id; `charges` have the mean
    length of their prompts.

    A job takes one slot from its claim on; once it has reached the engine, the engine's own load
    counts its sequences instead. So does its prompt take room in the KV cache, until its first
    token shows that the engine has counted it. No more jobs are claimed than have room in it.
    """

    def __init__(
        self,
        engine: Engine,
        runs: Mapping[str, JobRun],
        charges: Charges,
        kv_high_watermark: float,
    ) -> None:
        self._engine = engine
        self._runs = runs
        self._charges = charges
        self._kv_high_watermark = kv_high_watermark
        self._capacity = engine.capacity
        self._without_output: list[JobRun] = []
        self._watches: list[asyncio.Event] = []
        self.requested = 0
        """How many jobs the claims in flight may bring."""
        self.exchanged = 0
        """How many of those take the place of a job that is handed back, however full the engine
        is: it may not have ended that one yet."""
        self.draining = False
        self.isolated = False
        """The worker claims nothing but suspects."""
        self.paused = ""
        """Why an operator has paused the worker, in words; empty if none has."""

    @property
    def usable(self) -> bool:
        """The engine can run jobs, and no operator has paused the worker."""
        return not (self._engine.dead or self.paused)

    @property
    def may_claim(self) -> bool:
        """Nothing but the number of free slots limits what the worker claims."""
        return self.usable and not (self.draining or self.isolated)

    def watch(self) -> asyncio.Event:
        """An event of the caller's own, which is set when slots may have become free."""
        self._watches.append(asyncio.Event())
        return self._watches[-1]

    def changed(self) -> None:
        """Slots may have become free."""
        for event in self._watches:
            event.set()

    def add(self, run: JobRun) -> None:
        """Count a job that was just claimed."""
        self._without_output.append(run)

    def free(self) -> int:
        """Slots that no job takes or is about to take. Called at every engine step."""
        if self._without_output:
            self._without_output = list(filter(self._has_no_output, self._without_output))
        return free_slots(self._snapshot())

    def overcommitted(self) -> int:
        """Slots of the claims in flight that other jobs have taken since those were decided."""
        exchanged = self.exchanged if self.may_claim else 0
        return max(0, self.requested - exchanged - self.free())

    @property
    def decision(self) -> ClaimDecision:
        """What may be claimed now, and why. Safe to call from another thread."""
        return decide(self._snapshot())

    def next_claim(self, claimers: int) -> ClaimDecision:
        """What one of `claimers` may claim now, beside the claims in flight."""
        return decide(self._snapshot(self.requested), claimers)

    def _snapshot(self, requested: int = 0) -> SlotSnapshot:
        load, capacity, starting = self._engine.load(), self._capacity, requested
        mean = min(self._charges.prompt_tokens, capacity.max_model_len)
        prompt_tokens = requested * mean
        for run in filter(self._has_no_output, list(self._without_output)):
            starting += not run.buffer.reached_engine
            estimate = run.buffer.prompt_tokens or len(run.job.body) // _BYTES_PER_TOKEN
            prompt_tokens += min(estimate, capacity.max_model_len)
        per_token = 1 / capacity.kv_tokens if capacity.kv_tokens else 0.0
        return SlotSnapshot(
            slots=capacity.max_num_seqs,
            unfinished=load.unfinished,
            starting=starting,
            kv_usage=load.kv_usage + prompt_tokens * per_token,
            kv_high_watermark=self._kv_high_watermark,
            kv_per_prompt=mean * per_token,
            draining=self.draining or self._engine.dead,
            isolated=self.isolated,
            paused=self.paused,
        )

    def _has_no_output(self, run: JobRun) -> bool:
        return not run.buffer.completion_tokens and self._runs.get(run.job.id) is run
