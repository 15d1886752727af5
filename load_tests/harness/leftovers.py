"""Counts what ended jobs left in Redis: entries and keys that should be gone."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import redis

from shared.store import keys

_SETTLE_S = 10.0
_EXPIRING = {keys.JOB, keys.LOG, keys.BODY}
"""Kinds of keys that must have a TTL when no job runs."""
_WITH_ENTRIES = {keys.WAITING, keys.LINE, "first", "deadlines"}


def leftovers(client: redis.Redis) -> dict[str, int]:
    """Return counts of what is left ten seconds after the last job; empty if nothing is."""
    until = time.monotonic() + _SETTLE_S
    while True:
        found = {name: count for name, count in count_leftovers(client).items() if count}
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.5)


def count_leftovers(client: Any) -> dict[str, int]:
    """Count leftovers now."""
    found: Counter[str] = Counter()
    logs: dict[str, int] = {}
    for raw in client.scan_iter("flotilla:*", count=1000):
        parsed = keys.parse(raw.decode())
        if parsed is None:
            continue
        shard, kind, rest = parsed
        if kind == keys.LOG:
            logs[rest] = shard
        if kind in _EXPIRING and client.pttl(raw) == -1:
            found[f"{kind} keys without TTL"] += 1
        if kind in _WITH_ENTRIES:
            found[f"{kind} entries"] += client.zcard(raw)
        if kind == keys.QUEUE:
            found["queue entries"] += client.xlen(raw)
            if any(group["name"] == keys.GROUP.encode() for group in client.xinfo_groups(raw)):
                found["pending entries"] += client.xpending(raw, keys.GROUP)["pending"]
    # Now, not during the scan: a job and its log may have expired in its course.
    # That of a job which was deleted lives until its tokens are counted.
    found["logs without a job"] = sum(
        not client.exists(keys.job(shard, job_id)) and client.pttl(keys.log(shard, job_id)) == -1
        for job_id, shard in logs.items()
    )
    return dict(found)
