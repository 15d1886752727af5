"""Runs one row: starts a fleet and clients, injects the fault several times, evaluates."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from load_tests.faults.clients import Clients
from load_tests.faults.fleet import FaultFleet
from load_tests.faults.injected.fault import Fault
from load_tests.faults.injected.row import FaultRow, make_row
from load_tests.faults.leftovers import leftovers
from load_tests.faults.schedules.play import play_fixed

FIXED_TITLES = {
    "lost-lease": "Redis stopped for 1/60 of a lease, then the worker until 0.83 of it has passed",
    "silent-redis": "Redis stopped for 0.9 of a lease, one worker, young streams",
}
FIXED_TIMES = 11
_WARM_UP_S = 2.0
_AFTER_S = 1.0


async def run_fixed_schedule(name: str, folder: Path, *, times: int) -> FaultRow:
    """Return the row of a fixed schedule of pauses. Raises ProcessError."""
    results = await play_fixed(name, folder / name, rounds=times, progress=lambda line: None)
    return make_row(FIXED_TITLES[name], results.paused_at, results.outcomes, results.leftovers)


async def run_fault(
    name: str,
    fault: Fault,
    folder: Path,
    *,
    times: int,
    every_s: float,
    tokens: int,
    timeout_s: float,
) -> FaultRow:
    """Return the row of a fault that is injected `times` times.

    Raises ProcessError if the fleet does not start, or is not ready again after a fault.
    """
    fleet = await asyncio.to_thread(lambda: FaultFleet(folder / name, **fault.fleet))
    clients = Clients(fleet.urls, tokens=tokens, timeout_s=timeout_s)
    injected_at: list[float] = []
    try:
        clients.start()
        await asyncio.sleep(_WARM_UP_S)
        for n in range(times):
            injected_at.append(time.monotonic())
            await asyncio.to_thread(fault.inject, fleet, n)
            await asyncio.to_thread(fleet.wait_until_ready)
            await asyncio.sleep(injected_at[-1] + every_s - time.monotonic())
        await asyncio.sleep(_AFTER_S)
        await clients.stop()
        gone = await clients.compare_records()
        left = await asyncio.to_thread(leftovers, fleet.client)
    finally:
        await clients.close()
        await asyncio.to_thread(fleet.close)
    notes = [*fleet.notes, *([f"{gone} jobs have no record"] if gone else [])]
    return make_row(fault.title, injected_at, clients.outcomes, left, notes)
