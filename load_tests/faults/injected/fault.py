"""The faults that can be injected into a fleet. Each function injects one for the n-th time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from load_tests.harness.fleet import Fleet
from shared.store.redis import keys

Inject = Callable[[Fleet, int], None]
"""Injects a fault; returns when it is over. Replacements may still start."""
_WATCH_S = 8.0
_DOWN_S = 0.5
_STOPPED_S = 3.0
_FULL_S = 2.0
_EVICTED = 0.7
"""Share of the data that no longer fits into memory."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the table: what is done to the fleet, how often, and how far apart."""

    title: str
    inject: Inject
    times: int
    every_s: float = 3.0
    """Seconds from one injection to the next; more if an injection takes longer."""
    fleet: Mapping[str, Any] = field(default_factory=dict)
    """Fields of FleetShape that differ from those of the other rows."""


def _stop_worker(fleet: Fleet, n: int) -> None:
    fleet.pause(fleet.workers[n % len(fleet.workers)], 2 * fleet.shape.lease_s)


def _end_worker(fleet: Fleet, n: int) -> None:
    """Send SIGTERM to a worker; start a successor at once."""
    at = n % len(fleet.workers)
    old = fleet.workers[at]
    old.terminate()
    fleet.replace_worker(at)
    fleet.end(old)


def _end_gateway(fleet: Fleet, n: int) -> None:
    """Send SIGTERM to a gateway; start it again when it has ended."""
    at = n % len(fleet.gateways)
    fleet.end(fleet.gateways[at])
    fleet.replace_gateway(at)


def _same_id(fleet: Fleet, n: int) -> None:
    """Start a second worker with the id of the first, as after copying its settings."""
    second = fleet.start_worker(fleet.workers[0].name).popen
    until = time.monotonic() + _WATCH_S
    while time.monotonic() < until and second.poll() is None:
        time.sleep(0.05)
    if second.poll() is None:
        fleet.notes.append("the second worker with the first one's id was not refused")
        second.kill()
        second.wait()
    else:
        fleet.notes.append(f"the second worker ended with status {second.returncode}")
    if fleet.workers[0].popen.poll() is not None:
        fleet.notes.append("the first worker ended")
        fleet.replace_worker(0)


def _fill_memory(fleet: Fleet, n: int) -> None:
    """Make Redis refuse writes for two seconds."""
    fleet.client.config_set("maxmemory", 1)
    time.sleep(_FULL_S)
    fleet.client.config_set("maxmemory", 0)


def _evict(fleet: Fleet, n: int) -> None:
    """Make Redis evict keys, as when it is configured as a cache."""
    memory: Any = fleet.client.info("memory")
    room = memory["used_memory"] - _EVICTED * memory["used_memory_dataset"]
    fleet.client.config_set("maxmemory-policy", "allkeys-lru")
    fleet.client.config_set("maxmemory", int(room))
    time.sleep(_FULL_S)
    fleet.client.config_set("maxmemory", 0)
    fleet.client.config_set("maxmemory-policy", "noeviction")


def _delete_one(kind: str) -> Inject:
    """Delete the key of this kind of one running job."""

    def inject(fleet: Fleet, n: int) -> None:
        client: Any = fleet.client
        running = []
        for raw in sorted(client.scan_iter(f"{keys.base(0)}{kind}:*", count=1000)):
            job_id = raw.decode().rpartition(":")[2]
            if client.hget(keys.job(0, job_id), "state") == b"in_progress":
                running.append(raw)
        if running:
            client.delete(random.Random(n).choice(running))

    return inject


def _flush_all(fleet: Fleet, n: int) -> None:
    fleet.client.flushall()


def _flush_scripts(fleet: Fleet, n: int) -> None:
    client: Any = fleet.client
    client.script_flush()
    client.execute_command("FUNCTION", "FLUSH")


def _kill_subscriptions(fleet: Fleet, n: int) -> None:
    fleet.client.client_kill_filter(_type="pubsub")


def _kill_connections(fleet: Fleet, n: int) -> None:
    """Close all connections but the one of this test."""
    _kill_subscriptions(fleet, n)
    fleet.client.client_kill_filter(_type="normal", skipme=True)


def _kill_redis(fleet: Fleet, n: int) -> None:
    fleet.kill_redis(_DOWN_S)


FAULTS = {
    "none": Fault("none", lambda fleet, n: None, 5),
    "worker-kill": Fault("worker kill -9", lambda f, n: f.kill_worker(n % len(f.workers)), 20),
    "worker-stop": Fault("worker stopped for two leases", _stop_worker, 8, 5.0),
    "worker-term": Fault("worker SIGTERM with a successor", _end_worker, 8, 5.0),
    "same-id": Fault("two workers with one id", _same_id, 1, 12.0),
    "gateway-kill": Fault("gateway kill -9", lambda f, n: f.kill_gateway(0), 6, 6.0),
    "gateway-term": Fault("gateway SIGTERM, two gateways", _end_gateway, 6, fleet={"gateways": 2}),
    "redis-kill": Fault("Redis kill -9, AOF", _kill_redis, 6, 6.0),
    "redis-stop": Fault(
        "Redis stopped for 3 s (two leases)",
        lambda f, n: f.pause(f.redis.process, _STOPPED_S),
        4,
        14.0,
    ),
    "redis-lost": Fault("Redis kill -9 without AOF", _kill_redis, 4, 6.0, {"appendonly": False}),
    "redis-full": Fault("Redis out of memory", _fill_memory, 6, 5.0),
    "redis-evicts": Fault("Redis evicts (allkeys-lru)", _evict, 6, 5.0),
    "job-deleted": Fault("job hash deleted", _delete_one(keys.JOB), 8, 2.0),
    "log-deleted": Fault("log of a running job deleted", _delete_one(keys.LOG), 8, 2.0),
    "flushall": Fault("FLUSHALL", _flush_all, 4, 6.0),
    "scripts": Fault("scripts and functions flushed", _flush_scripts, 8, 2.0),
    "subscriptions": Fault("subscriptions killed", _kill_subscriptions, 8, 2.0),
    "connections": Fault("all Redis connections killed", _kill_connections, 8, 3.0),
}
"""By the names that the option `--only` takes."""
