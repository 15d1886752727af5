"""The faults: what is done to the fleet, how often, and at which distance."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from load_tests.faults.fleet import Fleet, kill, send, wait_for_end

Strike = Callable[[Fleet, int], None]
"""Does it once, the n-th time; returns when it is over. The replacement need not be ready."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the table."""

    title: str
    strike: Strike
    times: int
    every_s: float = 3.0
    """From the begin of one to the begin of the next, or more if it takes longer."""
    fleet: Mapping[str, Any] = field(default_factory=dict)
    """What the fleet has beside or instead of the usual."""


def _nothing(fleet: Fleet, n: int) -> None:
    pass


def _worker_kill(fleet: Fleet, n: int) -> None:
    at = n % len(fleet.workers)
    kill(fleet.workers[at])
    fleet.replace_worker(at)


def _worker_stop(fleet: Fleet, n: int) -> None:
    fleet.pause(fleet.workers[n % len(fleet.workers)], 2 * fleet.lease_s)


def _worker_term(fleet: Fleet, n: int) -> None:
    at = n % len(fleet.workers)
    old = fleet.workers[at]
    send(old, signal.SIGTERM)
    fleet.replace_worker(at)
    wait_for_end(old)


def _gateway_kill(fleet: Fleet, n: int) -> None:
    at = n % len(fleet.gateways)
    kill(fleet.gateways[at])
    fleet.replace_gateway(at)


def _gateway_term(fleet: Fleet, n: int) -> None:
    at = n % len(fleet.gateways)
    send(fleet.gateways[at], signal.SIGTERM)
    wait_for_end(fleet.gateways[at])
    fleet.replace_gateway(at)


def _redis_kill(fleet: Fleet, n: int) -> None:
    fleet.restart_redis()


def _redis_stop(fleet: Fleet, n: int) -> None:
    fleet.pause(fleet.redis.process, 3.0)


FAULTS: dict[str, Fault] = {
    "none": Fault("none", _nothing, 5),
    "worker-kill": Fault("worker kill -9", _worker_kill, 20),
    "worker-stop": Fault("worker stopped for two leases", _worker_stop, 8, 5.0),
    "worker-term": Fault("worker SIGTERM with a successor", _worker_term, 8, 5.0),
    "gateway-kill": Fault("gateway kill -9", _gateway_kill, 6, 6.0),
    "gateway-term": Fault("gateway SIGTERM, two gateways", _gateway_term, 6, fleet={"gateways": 2}),
    "redis-kill": Fault("Redis kill -9, AOF", _redis_kill, 6, 6.0),
    "redis-stop": Fault("Redis stopped for 3 s (two leases)", _redis_stop, 4, 14.0),
    "redis-lost": Fault("Redis kill -9 without AOF", _redis_kill, 4, 6.0, {"appendonly": False}),
}
