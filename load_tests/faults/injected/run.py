"""Runs one row: starts a fleet and clients, injects the fault several times, evaluates."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

from load_tests.clients.trial import Trial
from load_tests.faults.checked_call import CheckedCall
from load_tests.faults.injected.fault import Fault
from load_tests.faults.injected.row import FaultRow, make_row
from load_tests.harness.fleet import FleetShape
from load_tests.harness.leftovers import leftovers
from load_tests.oracle.request_classes import Mode, chat
from load_tests.oracle.request_source import RequestSource

_STREAMS, _JOBS = 30, 10
_LEASE_S = 1.5
_WARM_UP_S = 2.0
_AFTER_S = 1.0


async def run_fault(
    fault: Fault, folder: Path, *, times: int, every_s: float, tokens: int, timeout_s: float
) -> FaultRow:
    """Return the row of a fault that is injected `times` times.

    Raises ProcessError if the fleet does not start, or is not ready again after a fault.
    """
    calls: list[CheckedCall] = []
    injected_at: list[float] = []
    shape = FleetShape(**{"workers": 3, "lease_s": _LEASE_S, **fault.fleet})
    source = RequestSource([chat(tokens)])
    both = [chat(tokens), chat(tokens, stream=False)]
    async with Trial(
        folder,
        shape,
        source,
        lambda seen, stored: calls.append(CheckedCall(seen, stored)),
        timeout_s=timeout_s,
    ) as trial:
        fleet, clients = trial.fleet, trial.clients
        clients.start(partial(source.draw, modes={Mode.CALL: 1}), clients=_STREAMS)
        polled = partial(source.draw, modes={Mode.POLLED: 1}, classes=both)
        clients.start(polled, clients=_JOBS, seed="jobs")
        await asyncio.sleep(_WARM_UP_S)
        for n in range(times):
            injected_at.append(time.monotonic())
            await asyncio.to_thread(fault.inject, fleet, n)
            await asyncio.to_thread(fleet.wait_until_ready)
            await asyncio.sleep(injected_at[-1] + every_s - time.monotonic())
            trial.check()
        await asyncio.sleep(_AFTER_S)
        await trial.stop()
        left = await asyncio.to_thread(leftovers, fleet.client)
        return make_row(fault.title, injected_at, calls, left, fleet.notes)
