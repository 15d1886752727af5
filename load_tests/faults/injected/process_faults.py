"""Faults of workers and gateways. Each function does one of them once, the n-th time."""

from __future__ import annotations

import signal
import time

from load_tests.faults.fleet import Fleet, kill, send, wait_for_end

_TWIN_S = 8.0
_DRAIN_S = 3.0


def nothing(fleet: Fleet, n: int) -> None:
    """The figures of a fleet that nothing happens to."""


def worker_kill(fleet: Fleet, n: int) -> None:
    """Kill -9; a successor starts at once."""
    at = n % len(fleet.workers)
    kill(fleet.workers[at])
    fleet.replace_worker(at)


def worker_stop(fleet: Fleet, n: int) -> None:
    """SIGSTOP for two leases."""
    fleet.pause(fleet.workers[n % len(fleet.workers)], 2 * fleet.lease_s)


def worker_sigterm(fleet: Fleet, n: int) -> None:
    """SIGTERM; a successor starts at once."""
    at = n % len(fleet.workers)
    old = fleet.workers[at]
    send(old, signal.SIGTERM)
    fleet.replace_worker(at)
    wait_for_end(old)


def gateway_kill(fleet: Fleet, n: int) -> None:
    """Kill -9; started again on the same port."""
    at = n % len(fleet.gateways)
    kill(fleet.gateways[at])
    fleet.replace_gateway(at)


def gateway_sigterm(fleet: Fleet, n: int) -> None:
    """SIGTERM; started again when it has ended."""
    at = n % len(fleet.gateways)
    send(fleet.gateways[at], signal.SIGTERM)
    wait_for_end(fleet.gateways[at])
    fleet.replace_gateway(at)


def twin(fleet: Fleet, n: int) -> None:
    """A second worker with the first one's id, as after a copied setting, for a few seconds."""
    other = fleet.start_worker(fleet.worker_id(0))
    until = time.monotonic() + _TWIN_S
    while time.monotonic() < until and other.popen.poll() is None:
        time.sleep(0.05)
    if other.popen.returncode is None:
        fleet.notes.append("the second worker with the id of another was not refused")
        send(other, signal.SIGTERM)
        time.sleep(_DRAIN_S)
        send(other, signal.SIGTERM)
        wait_for_end(other)
    else:
        fleet.notes.append(f"the second worker ended with status {other.popen.returncode}")
    if fleet.workers[0].popen.poll() is not None:
        fleet.notes.append("the first worker ended")
        fleet.replace_worker(0)
