"""Slot accounting: which of the engine's slots are taken, counting jobs on their way into it."""

from __future__ import annotations

from collections.abc import Mapping

from worker.core.claim_policy import ClaimDecision, SlotSnapshot, decide, free_slots
from worker.core.isolation import Isolation
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
        self.draining = False
        self.paused = ""
        """Why an operator has the worker claim nothing, in words; empty if none has."""
        self.isolation: Isolation | None = None

    def add(self, run: JobRun) -> None:
        """Count a job that was just claimed."""
        self._starting.append(run)

    def free(self) -> int:
        """Slots that no job takes or is about to take. Called at every engine step."""
        if self._starting:
            self._starting = [run for run in self._starting if self._is_starting(run)]
        return free_slots(self._snapshot(len(self._starting)))

    def decide(self, requested: int = 0, claimers: int = 1) -> ClaimDecision:
        """How much one of `claimers` may claim now, while claims in flight ask for `requested`.

        Safe to call from another thread.
        """
        starting = sum(map(self._is_starting, list(self._starting)))
        return decide(self._snapshot(starting + requested), claimers)

    def _snapshot(self, starting: int) -> SlotSnapshot:
        load = self._engine.load()
        return SlotSnapshot(
            slots=self._slots,
            unfinished=load.unfinished,
            starting=starting,
            kv_usage=load.kv_usage,
            kv_high_watermark=self._kv_high_watermark,
            draining=self.draining or self._engine.dead,
            isolated=self.isolation is not None and self.isolation.isolated,
            paused=self.paused,
        )

    def _is_starting(self, run: JobRun) -> bool:
        return not run.buffer.reached_engine and run.job.id in self._runs
