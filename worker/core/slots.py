"""Slot accounting: which of the engine's slots are taken, counting jobs on their way into it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from worker.core.claim_policy import ClaimDecision, SlotSnapshot, decide, free_slots
from worker.core.job_run import JobRun
from worker.engines.interface import Engine


class SlotAccounting:
    """The slots of one engine. `runs` are the worker's jobs, by job id.

    A job takes one slot from its claim on; once it has reached the engine, the engine's own load
    counts its sequences instead.
    """

    def __init__(
        self, engine: Engine, runs: Mapping[str, JobRun], kv_high_watermark: float
    ) -> None:
        self._engine = engine
        self._runs = runs
        self._kv_high_watermark = kv_high_watermark
        self._slots = engine.capacity.max_num_seqs
        self._starting: list[JobRun] = []  # those that may not have reached the engine yet
        self._watches: list[asyncio.Event] = []
        self.requested = 0
        """How many jobs the claims in flight may bring."""
        self.draining = False
        self.isolated = False
        """The worker claims nothing but suspects."""
        self.paused = ""
        """Why an operator has paused the worker, in words; empty if none has."""

    @property
    def usable(self) -> bool:
        """The engine can run jobs, and no operator has paused the worker."""
        return not (self._engine.dead or self.paused)

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
        self._starting.append(run)

    def free(self) -> int:
        """Slots that no job takes or is about to take. Called at every engine step."""
        if self._starting:
            self._starting = [run for run in self._starting if self._is_starting(run)]
        return free_slots(self._snapshot())

    def overcommitted(self) -> int:
        """Slots of the claims in flight that other jobs have taken since those were decided."""
        return max(0, self.requested - self.free())

    @property
    def decision(self) -> ClaimDecision:
        """What may be claimed now, and why. Safe to call from another thread."""
        return decide(self._snapshot())

    def next_claim(self, claimers: int) -> ClaimDecision:
        """What one of `claimers` may claim now, beside the claims in flight."""
        return decide(self._snapshot(self.requested), claimers)

    def _snapshot(self, requested: int = 0) -> SlotSnapshot:
        load = self._engine.load()
        return SlotSnapshot(
            slots=self._slots,
            unfinished=load.unfinished,
            starting=requested + sum(map(self._is_starting, list(self._starting))),
            kv_usage=load.kv_usage,
            kv_high_watermark=self._kv_high_watermark,
            draining=self.draining or self._engine.dead,
            isolated=self.isolated,
            paused=self.paused,
        )

    def _is_starting(self, run: JobRun) -> bool:
        return not run.buffer.reached_engine and self._runs.get(run.job.id) is run
