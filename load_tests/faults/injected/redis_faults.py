"""Faults of Redis and of the data in it. Each function injects one fault for the n-th time."""

from __future__ import annotations

import random
import time
from typing import Any

from load_tests.faults.fleet import FaultFleet
from shared.store.redis import keys

_STOPPED_S = 3.0
_FULL_S = 2.0
_EVICTED = 0.7
"""Share of the data that no longer fits into memory."""


def kill(fleet: FaultFleet, n: int) -> None:
    """Kill Redis with SIGKILL; start it again with the data on its disk."""
    fleet.restart_redis()


def stop(fleet: FaultFleet, n: int) -> None:
    """Stop Redis for three seconds (SIGSTOP)."""
    fleet.pause(fleet.redis.process, _STOPPED_S)


def out_of_memory(fleet: FaultFleet, n: int) -> None:
    """Make Redis refuse writes for two seconds (`maxmemory`)."""
    fleet.client.config_set("maxmemory", 1)
    time.sleep(_FULL_S)
    fleet.client.config_set("maxmemory", 0)


def evict(fleet: FaultFleet, n: int) -> None:
    """Make Redis evict keys, as when it is configured as a cache."""
    memory: Any = fleet.client.info("memory")
    room = memory["used_memory"] - _EVICTED * memory["used_memory_dataset"]
    fleet.client.config_set("maxmemory-policy", "allkeys-lru")
    fleet.client.config_set("maxmemory", int(room))
    time.sleep(_FULL_S)
    fleet.client.config_set("maxmemory", 0)
    fleet.client.config_set("maxmemory-policy", "noeviction")


def delete_job(fleet: FaultFleet, n: int) -> None:
    """Delete the hash of a running job."""
    running = _running(fleet, keys.JOB)
    if running:
        fleet.client.delete(random.Random(n).choice(running))


def delete_log(fleet: FaultFleet, n: int) -> None:
    """Delete the log of a running job."""
    running = _running(fleet, keys.LOG)
    if running:
        fleet.client.delete(random.Random(n).choice(running))


def flush_all(fleet: FaultFleet, n: int) -> None:
    """Delete all data (FLUSHALL)."""
    fleet.client.flushall()


def flush_scripts(fleet: FaultFleet, n: int) -> None:
    """Delete all loaded scripts and functions."""
    client: Any = fleet.client
    client.script_flush()
    client.execute_command("FUNCTION", "FLUSH")


def kill_subscriptions(fleet: FaultFleet, n: int) -> None:
    """Close all pub/sub connections."""
    fleet.client.client_kill_filter(_type="pubsub")


def kill_connections(fleet: FaultFleet, n: int) -> None:
    """Close all connections but the one of this test."""
    fleet.client.client_kill_filter(_type="pubsub")
    fleet.client.client_kill_filter(_type="normal", skipme=True)


def _running(fleet: FaultFleet, kind: str) -> list[str]:
    """Return the keys of this kind that belong to jobs in progress."""
    client: Any = fleet.client
    found = []
    for raw in sorted(client.scan_iter(f"{keys.base(0)}{kind}:*", count=1000)):
        job_id = raw.decode().rpartition(":")[2]
        if client.hget(keys.job(0, job_id), "state") == b"in_progress":
            found.append(raw.decode())
    return found
