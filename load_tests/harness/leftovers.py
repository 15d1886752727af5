"""Counts what ended jobs left in Redis: entries and keys that should be gone."""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import Any

import redis

from shared.job.job import shard_in
from shared.store import keys

_SETTLE_S = 10.0
_EXPIRING = {"job", "log", "body"}
"""Kinds of keys that must have a TTL when no job runs."""
_WITH_ENTRIES = {"waiting", "line", "first", "deadlines"}


def leftovers(client: redis.Redis) -> dict[str, int]:
    """Return counts of what is left ten seconds after the last job; empty if nothing is."""
    until = time.monotonic() + _SETTLE_S
    while True:
        found = {name: count for name, count in count_leftovers(client).items() if count}
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.5)


def word_of(key: bytes) -> tuple[str, str]:
    """What a shard's key is, and of what; empty for other keys."""
    match = re.fullmatch(r"flotilla:\{\d+\}:(\w+):(.*)", key.decode())
    return (match[1], match[2]) if match else ("", "")


def count_leftovers(client: Any) -> dict[str, int]:
    """Count leftovers now."""
    found: Counter[str] = Counter()
    logs: list[str] = []
    for raw in client.scan_iter("flotilla:*", count=1000):
        kind, rest = word_of(raw)
        if kind == "log":
            logs.append(rest)
        if kind in _EXPIRING and client.pttl(raw) == -1:
            found[f"{kind} keys without TTL"] += 1
        if kind in _WITH_ENTRIES:
            found[f"{kind} entries"] += client.zcard(raw)
        if kind == "queue":
            found["queue entries"] += client.xlen(raw)
            if any(group["name"] == keys.GROUP.encode() for group in client.xinfo_groups(raw)):
                found["pending entries"] += client.xpending(raw, keys.GROUP)["pending"]
    # Now, not during the scan: a job and its log may have expired in its course.
    # That of a job which was deleted lives until its tokens are counted.
    found["logs without a job"] = sum(
        not client.exists(keys.job(shard_in(job_id), job_id))
        and client.pttl(keys.log(shard_in(job_id), job_id)) == -1
        for job_id in logs
    )
    return dict(found)
