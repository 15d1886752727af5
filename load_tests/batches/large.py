"""A batch of a million lines or more: memory of all processes, times until it runs and is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load_tests.batches.batch_fleet import BatchFleet, write_lines
from load_tests.harness.errors import WrongAnswerError
from load_tests.harness.session import print_progress
from load_tests.systems.engine import PACED, EngineTiming
from tests.harness.fleet import Stack

_SAMPLE_S = 0.2
_PADDING = 250
"""Bytes by which a line is longer than those of `cost`: then it has about 500."""
_RUNS_S = 10.0
"""The batch runs for so long before it is cancelled."""
_DEADLINE_S = 3600.0


@dataclass(frozen=True, slots=True)
class LargeRun:
    """What it took. Times are seconds, sizes are MB (a million bytes)."""

    lines: int
    file_mb: float
    upload_s: float
    checked_s: float
    """From the creation of the batch until its lines run."""
    first_answer_s: float
    """From the creation until the first job has ended."""
    cancelled_s: float
    """From the cancellation to the end: all lines that have not run are in the error file."""
    grown_mb: Mapping[str, float]
    """By process: the most private memory, less what it had before the upload. Redis: all that it
    uses, less what it used before."""
    answered: int
    given_up: int


class _Memory:
    """The most memory of each process, sampled in a thread."""

    def __init__(self, fleet: BatchFleet) -> None:
        self._fleet = fleet
        self._before = self._now()
        self._most = dict(self._before)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def grown_mb(self) -> dict[str, float]:
        """Stop; by how much each process grew."""
        self._stop.set()
        self._thread.join()
        return {name: (most - self._before[name]) / 1e6 for name, most in self._most.items()}

    def _run(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            for name, size in self._now().items():
                self._most[name] = max(self._most[name], size)

    def _now(self) -> dict[str, float]:
        found = {each.name: float(each.memory().private) for each in self._fleet.processes}
        with self._fleet.redis[0].client() as client:
            used: Any = client.info("memory")["used_memory"]
        return found | {"redis": float(used)}


def large_run(processes: Stack, lines: int) -> LargeRun:
    """Upload a file of so many lines, run its batch for 10 s, cancel it. Raises RunError."""
    fleet = BatchFleet(processes, EngineTiming(PACED.step_ms, PACED.step_us_per_seq, 256))
    fleet.start()
    path: Path = processes.folder / "large.jsonl"
    write_lines(path, lines, tokens=1, padding="x" * _PADDING)
    size = path.stat().st_size
    memory = _Memory(fleet)
    began = time.monotonic()
    batch = fleet.create(path)
    created = time.monotonic()
    path.unlink()
    print_progress(f"{size / 1e6:.0f} MB are uploaded in {created - began:.0f} s")
    checked = _seconds_until(lambda: fleet.get(batch)["status"] == "in_progress", created)
    answered = _seconds_until(
        lambda: fleet.worker.metric("flotilla_tokens_total", kind="completion") > 0, created
    )
    print_progress(f"checked within {checked:.1f} s, the first answer within {answered:.1f} s")
    time.sleep(_RUNS_S)
    fleet.http.post(f"batches/{batch['id']}/cancel").raise_for_status()
    cancelled = time.monotonic()
    *_, ended = fleet.follow(batch, _DEADLINE_S)
    cancelled_s = time.monotonic() - cancelled
    counts = ended["request_counts"]
    files = [_count(fleet, ended[name]) for name in ("output_file_id", "error_file_id")]
    if ended["status"] != "cancelled" or files != [counts["completed"], counts["failed"]]:
        raise WrongAnswerError(f"{files}: {ended}")
    if sum(files) != lines:
        raise WrongAnswerError(f"{files} of {lines} lines have a result")
    return LargeRun(
        lines=lines,
        file_mb=size / 1e6,
        upload_s=created - began,
        checked_s=checked,
        first_answer_s=answered,
        cancelled_s=cancelled_s,
        grown_mb=memory.grown_mb(),
        answered=files[0],
        given_up=files[1],
    )


def _seconds_until(condition: Callable[[], bool], began: float) -> float:
    while not condition():
        time.sleep(_SAMPLE_S)
        if time.monotonic() > began + _DEADLINE_S:
            raise WrongAnswerError(f"not within {_DEADLINE_S:.0f} s")
    return time.monotonic() - began


def _count(fleet: BatchFleet, file_id: str) -> int:
    """The lines of a file."""
    with fleet.http.stream("GET", f"files/{file_id}/content") as reply:
        return sum(part.count(b"\n") for part in reply.iter_bytes())
