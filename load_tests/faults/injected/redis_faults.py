"""Faults of Redis, and of what lies in it. Each function does one of them once."""

from __future__ import annotations

import random
import time
from typing import Any

from load_tests.faults.fleet import Fleet
from shared.protocol import keys

_STOPPED_S = 3.0
_FULL_S = 2.0
_EVICTED = 0.7
"""The share of the data that does not fit any more."""


def kill(fleet: Fleet, n: int) -> None:
    """Kill -9, then it starts with what it has on its disk."""
    fleet.restart_redis()


def stop(fleet: Fleet, n: int) -> None:
    """SIGSTOP."""
    fleet.pause(fleet.redis.process, _STOPPED_S)


def out_of_memory(fleet: Fleet, n: int) -> None:
    """It takes no more writes for a while."""
    fleet.client.config_set("maxmemory", 1)
    time.sleep(_FULL_S)
    fleet.client.config_set("maxmemory", 0)


def evict(fleet: Fleet, n: int) -> None:
    """It throws keys away to make room, as a cache would."""
    memory: Any = fleet.client.info("memory")
    room = memory["used_memory"] - _EVICTED * memory["used_memory_dataset"]
    fleet.client.config_set("maxmemory-policy", "allkeys-lru")
    fleet.client.config_set("maxmemory", int(room))
    time.sleep(_FULL_S)
    fleet.client.config_set("maxmemory", 0)
    fleet.client.config_set("maxmemory-policy", "noeviction")


def delete_job(fleet: Fleet, n: int) -> None:
    """Delete the hash of a job that runs."""
    running = _running(fleet, keys.JOB)
    if running:
        fleet.client.delete(random.Random(n).choice(running))


def delete_log(fleet: Fleet, n: int) -> None:
    """Delete the log of a job that runs."""
    running = _running(fleet, keys.LOG)
    if running:
        fleet.client.delete(random.Random(n).choice(running))


def flush_all(fleet: Fleet, n: int) -> None:
    """FLUSHALL."""
    fleet.client.flushall()


def flush_scripts(fleet: Fleet, n: int) -> None:
    """SCRIPT FLUSH and FUNCTION FLUSH."""
    client: Any = fleet.client
    client.script_flush()
    client.execute_command("FUNCTION", "FLUSH")


def kill_subscriptions(fleet: Fleet, n: int) -> None:
    """All connections that subscribe end."""
    fleet.client.client_kill_filter(_type="pubsub")


def kill_connections(fleet: Fleet, n: int) -> None:
    """All connections but this one end."""
    fleet.client.client_kill_filter(_type="pubsub")
    fleet.client.client_kill_filter(_type="normal", skipme=True)


def _running(fleet: Fleet, word: str) -> list[str]:
    """Keys of this word that belong to jobs in progress."""
    client: Any = fleet.client
    found = []
    for raw in sorted(client.scan_iter(f"{keys.base(0)}{word}:*", count=1000)):
        job_id = raw.decode().rpartition(":")[2]
        if client.hget(keys.job(0, job_id), "state") == b"in_progress":
            found.append(raw.decode())
    return found
