"""How fast the workers' counters of tokens grow. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from shared.fleet.registry import WorkerInfo

WINDOW_S = 10.0
"""The time that rates are means of."""


class WorkerRates:
    """Tokens per second of each worker, from its heartbeats."""

    def __init__(self) -> None:
        self.output: dict[str, float] = {}
        """Output tokens per second, by worker, between its last two heartbeats."""
        self.prompt: dict[str, float] = {}
        """The same for the prompts of jobs that have ended."""
        self._last: dict[str, WorkerInfo] = {}

    def update(self, workers: Iterable[WorkerInfo]) -> None:
        """Add the workers' heartbeats; those that are known already change nothing."""
        last, self._last = self._last, {}
        for worker in workers:
            before = last.get(worker.id)
            self._last[worker.id] = worker
            if before is not None and worker.clock_s == before.clock_s:
                continue
            restarted = (
                before is None
                or worker.clock_s < before.clock_s
                or worker.finished < before.finished
            )
            if before is None or restarted:
                continue
            passed_s = worker.clock_s - before.clock_s
            if passed_s > WINDOW_S:  # there were no viewers meanwhile
                continue
            self.output[worker.id] = max(0, worker.output_tokens - before.output_tokens) / passed_s
            self.prompt[worker.id] = (worker.prompt_tokens - before.prompt_tokens) / passed_s
        for rates in (self.output, self.prompt):
            for gone in rates.keys() - self._last.keys():
                del rates[gone]
