"""Faults of workers and gateways. Each function injects one fault for the n-th time."""

from __future__ import annotations

import signal
import time

from load_tests.faults.fleet import FaultFleet, kill, send, wait_for_end

_WATCH_S = 8.0
_DRAIN_S = 3.0


def nothing(fleet: FaultFleet, n: int) -> None:
    """No fault: the figures for comparison."""


def worker_kill(fleet: FaultFleet, n: int) -> None:
    """Kill a worker with SIGKILL; start a successor at once."""
    at = n % len(fleet.workers)
    kill(fleet.workers[at])
    fleet.replace_worker(at)


def worker_stop(fleet: FaultFleet, n: int) -> None:
    """Stop a worker for two leases (SIGSTOP)."""
    fleet.pause(fleet.workers[n % len(fleet.workers)], 2 * fleet.lease_s)


def worker_sigterm(fleet: FaultFleet, n: int) -> None:
    """Send SIGTERM to a worker; start a successor at once."""
    at = n % len(fleet.workers)
    old = fleet.workers[at]
    send(old, signal.SIGTERM)
    fleet.replace_worker(at)
    wait_for_end(old)


def gateway_kill(fleet: FaultFleet, n: int) -> None:
    """Kill a gateway with SIGKILL; start it again on the same port."""
    at = n % len(fleet.gateways)
    kill(fleet.gateways[at])
    fleet.replace_gateway(at)


def gateway_sigterm(fleet: FaultFleet, n: int) -> None:
    """Send SIGTERM to a gateway; start it again when it has ended."""
    at = n % len(fleet.gateways)
    send(fleet.gateways[at], signal.SIGTERM)
    wait_for_end(fleet.gateways[at])
    fleet.replace_gateway(at)


def two_workers_with_one_id(fleet: FaultFleet, n: int) -> None:
    """Start a second worker with the id of the first, as after copying its settings."""
    second = fleet.start_worker(fleet.worker_id(0))
    until = time.monotonic() + _WATCH_S
    while time.monotonic() < until and second.popen.poll() is None:
        time.sleep(0.05)
    if second.popen.returncode is None:
        fleet.notes.append("the second worker with the first one's id was not refused")
        send(second, signal.SIGTERM)
        time.sleep(_DRAIN_S)
        send(second, signal.SIGTERM)
        wait_for_end(second)
    else:
        fleet.notes.append(f"the second worker ended with status {second.popen.returncode}")
    if fleet.workers[0].popen.poll() is not None:
        fleet.notes.append("the first worker ended")
        fleet.replace_worker(0)
