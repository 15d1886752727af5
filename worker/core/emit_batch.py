"""One emit call: the buffered output of a step, and the results of the jobs that end with it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from shared.job.result import JobResult
from shared.job.step_log import FLUSH_AFTER, FinalEntry, LogFlush
from shared.store.redis.scripts.emit import Step, make_step
from worker.core.output_buffer import OutputBuffer

DISCARDED = "discarded"
"""Outcome of a result that was not sent: its job was aborted or its lease was lost."""


class PendingResult(NamedTuple):
    """A job's result on its way to Redis."""

    result: JobResult
    outcome: asyncio.Future[str]
    """'ok', the state that the job had reached before, or `DISCARDED`."""

    def resolve(self, outcome: str) -> None:
        """Set the outcome unless it is set, or the task that awaits it was cancelled."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)


class FlushSchedule:
    """Which buffers have to flush to their jobs' logs, counted in steps of one shard.

    A buffer whose oldest unflushed entry belongs to step n is due in step n + FLUSH_AFTER - 1.
    """

    def __init__(self) -> None:
        self._steps: deque[list[OutputBuffer]] = deque()

    def advance(self, started: list[OutputBuffer]) -> list[OutputBuffer]:
        """Count one step, whose entry is the oldest unflushed one of `started`; returns the due."""
        self._steps.append(started)
        return self._steps.popleft() if len(self._steps) == FLUSH_AFTER else []


class Batch:
    """The content of one emit call."""

    def __init__(self) -> None:
        self.outputs: list[tuple[OutputBuffer, bytes, FinalEntry | None]] = []
        self.pending_results: dict[OutputBuffer, PendingResult] = {}
        self._log_flushes: list[tuple[OutputBuffer, LogFlush]] = []

    def close(self, schedule: FlushSchedule) -> None:
        """Add the log flushes that are due. No output may be added afterwards."""
        started = [buffer for buffer, _, _ in self.outputs if len(buffer.unflushed) == 1]
        # An attempt's first entry is in the log as soon as a client may see it (step_log.py).
        first = [buffer for buffer in started if not buffer.log_started]
        due = schedule.advance([buffer for buffer in started if buffer.log_started])
        self._log_flushes = [
            (buffer, buffer.log_flush())
            for buffer in (*first, *due)
            if buffer.unflushed and not buffer.discarded
        ]

    def step(self) -> Step:
        """The arguments of the emit script."""
        return make_step(self.outputs, [log_flush for _, log_flush in self._log_flushes])

    def valid_under(self, fence_token: str) -> bool:
        """Whether all jobs in it may be written under this fencing token."""
        fence_tokens = {buffer.fence_token for buffer, _, _ in self.outputs}
        fence_tokens.update(buffer.fence_token for buffer, _ in self._log_flushes)
        return bool(fence_token) and fence_tokens <= {fence_token}

    def drop_stale(self, fence_token: str) -> None:
        """Remove the jobs that this worker does not hold under this fencing token."""
        outputs, self.outputs = self.outputs, []
        for output in outputs:
            buffer = output[0]
            if buffer.fence_token != fence_token:  # not held any more, so it was not renewed
                buffer.discarded = True
            if not buffer.discarded:
                self.outputs.append(output)
            elif buffer in self.pending_results:
                self.pending_results.pop(buffer).resolve(DISCARDED)
        self._log_flushes = [
            (buffer, log_flush)
            for buffer, log_flush in self._log_flushes
            if buffer.fence_token == fence_token and not buffer.discarded
        ]

    @property
    def empty(self) -> bool:
        """Nothing is left to send."""
        return not self.outputs and not self._log_flushes
