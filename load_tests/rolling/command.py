"""`rolling`: replace all workers of a fleet under load, one after the other.

Each worker's successor is started first, and SIGTERM is sent to the worker when it is ready, as
Kubernetes and Compose do. The clients are plain ones that never retry. Exit status 1 if a call
failed, was cut, or had another answer than an undisturbed one.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from load_tests.clients.trial import Trial, errors_of
from load_tests.harness.fleet import FleetShape
from load_tests.harness.session import (
    OUTPUT,
    add_options,
    print_progress,
    print_tables,
    save_result,
    session,
)
from load_tests.harness.spread import percentile
from load_tests.harness.table import Table
from load_tests.oracle.observation import Observation
from load_tests.oracle.request_classes import Mode, chat
from load_tests.oracle.request_source import RequestSource, VllmSource
from load_tests.oracle.stored_job import StoredJob

HELP = "replace all workers under load: no call may fail"

_TIMEOUT_S = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    options = {
        "--vllm": (False, "real vLLM with the demo model"),
        "--workers": (3, "workers"),
        "--clients": (8, "streams at once"),
        "--tokens": (150, "tokens per answer"),
    }
    add_options(parser, {**options, **OUTPUT})


@dataclass(frozen=True, slots=True)
class RollingResult:
    """What the clients of one run observed."""

    engine: str
    replaced: int
    calls: int
    failed: int
    wrong: int
    """Answers that differ from the undisturbed one, or from their record."""
    pause_p50_s: float
    pause_p99_s: float
    pause_max_s: float
    drain_s: tuple[float, ...]
    """From SIGTERM to the end of each worker's process."""

    def table(self) -> Table:
        """As a table of one row."""
        head = ["engine", "workers\nreplaced", "calls", "failed\nor cut", "wrong"]
        head += ["pause p50 s", "p99 s", "max s", "slowest\ndrain s"]
        row = [self.engine, self.replaced, self.calls, self.failed, self.wrong]
        figures = [self.pause_p50_s, self.pause_p99_s, self.pause_max_s, max(self.drain_s)]
        cells = [*map(str, row), *(f"{figure:.2f}" for figure in figures)]
        return Table("Rolling restart of all workers", head, [cells])


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    with session() as processes:
        result = asyncio.run(_run(processes.folder / "fleet", arguments))
    print_tables([result.table()], arguments)
    save_result(arguments.json, "rolling", asdict(result))
    return 1 if result.failed or result.wrong else 0


async def _run(folder: Path, arguments: argparse.Namespace) -> RollingResult:
    calls: list[Observation] = []
    wrong: list[str] = []

    def on_read(seen: Observation, stored: StoredJob | None) -> None:
        calls.append(seen)
        errors = errors_of(seen, stored) if seen.complete else [seen.reason]
        if errors:
            wrong.extend(errors[:1] * seen.complete)
            print_progress(f"problem: {seen.request.tag}: {'; '.join(errors)}")

    classes = [chat(arguments.tokens)]
    source = VllmSource(1, classes) if arguments.vllm else RequestSource(classes)
    shape = FleetShape(arguments.workers, vllm=arguments.vllm)
    async with Trial(folder, shape, source, on_read, timeout_s=_TIMEOUT_S) as trial:
        draw = partial(source.draw, modes={Mode.CALL: 1})
        trial.clients.start(draw, clients=arguments.clients)
        print_progress("the restart begins")
        drains = await _replace_all(trial)
        await trial.stop()
    pauses = [seen.pause_s for seen in calls]
    return RollingResult(
        engine=shape.engine,
        replaced=len(drains),
        calls=len(calls),
        failed=sum(not seen.complete for seen in calls),
        wrong=len(wrong),
        pause_p50_s=percentile(pauses, 0.5),
        pause_p99_s=percentile(pauses, 0.99),
        pause_max_s=percentile(pauses, 1.0),
        drain_s=tuple(drains),
    )


async def _replace_all(trial: Trial) -> list[float]:
    """Replace each worker; return the seconds that each needed to drain."""
    fleet, drains = trial.fleet, []
    for n, worker in enumerate(list(fleet.workers)):
        successor = fleet.start_worker()
        await asyncio.to_thread(fleet.wait_until_ready, successor)
        began = time.monotonic()
        await asyncio.to_thread(fleet.end, worker)
        drains.append(time.monotonic() - began)
        fleet.workers[n] = successor
        trial.check()
        print_progress(f"worker {n + 1} of {len(fleet.workers)} is replaced")
    return drains
