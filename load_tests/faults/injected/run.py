"""One fault's row: a fleet, its clients, the fault several times, then what came of it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from load_tests.faults.clients import Clients
from load_tests.faults.fleet import Fleet
from load_tests.faults.injected.fault import Fault
from load_tests.faults.injected.row import Row, make_row
from load_tests.faults.leftovers import leftovers
from load_tests.faults.schedules.play import play_given

GIVEN_TITLES = {
    "lost-lease": "Redis stopped for 1/60 of a lease, then the worker until 0.83 of it has passed",
    "silent-redis": "Redis stopped for 0.9 of a lease, one worker, young streams",
}
GIVEN_TIMES = 11
_WARM_UP_S = 2.0
_AFTER_S = 1.0


async def run_given(name: str, folder: Path, *, times: int) -> Row:
    """The row of a schedule that gave wrong answers."""
    fuzz = await play_given(name, folder / name, rounds=times, say=lambda line: None)
    return make_row(GIVEN_TITLES[name], fuzz.strikes, fuzz.outcomes, fuzz.left)


async def run_fault(
    name: str,
    fault: Fault,
    folder: Path,
    *,
    times: int,
    every_s: float,
    tokens: int,
    patience_s: float,
) -> Row:
    """Raises ProcessError if the fleet does not start, or does not come back."""
    fleet = await asyncio.to_thread(lambda: Fleet(folder / name, **fault.fleet))
    clients = Clients(fleet.urls, tokens=tokens, patience_s=patience_s)
    strikes: list[float] = []
    try:
        clients.start()
        await asyncio.sleep(_WARM_UP_S)
        for n in range(times):
            strikes.append(time.monotonic())
            await asyncio.to_thread(fault.strike, fleet, n)
            await asyncio.to_thread(fleet.wait_until_ready)
            await asyncio.sleep(strikes[-1] + every_s - time.monotonic())
        await asyncio.sleep(_AFTER_S)
        await clients.stop()
        gone = await clients.compare_records()
        left = await asyncio.to_thread(leftovers, fleet.client)
    finally:
        await clients.close()
        await asyncio.to_thread(fleet.close)
    notes = [*fleet.notes, *([f"{gone} records are gone"] if gone else [])]
    return make_row(fault.title, strikes, clients.outcomes, left, notes)
