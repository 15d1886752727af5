"""What jobs have left in Redis when all have ended."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import redis

from shared.protocol import keys

_SETTLED_S = 10.0
_MORTAL = {keys.JOB, keys.LOG, keys.STEPS, keys.FENCE}
"""Keys of these must have a TTL now that no job runs."""
_WITH_ENTRIES = {keys.WAITING, keys.DEADLINES}


def leftovers(client: redis.Redis) -> dict[str, int]:
    """What is still there after some time, by name; nothing if all is as it should be."""
    until = time.monotonic() + _SETTLED_S
    while True:
        found = {name: count for name, count in look(client).items() if count}
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.5)


def look(client: Any) -> dict[str, int]:
    """Counts now."""
    found: Counter[str] = Counter()
    jobs, logs = set(), set()
    for raw in client.scan_iter("flotilla:*", count=1000):
        parsed = keys.parse(raw.decode())
        if parsed is None:
            continue
        _, word, rest = parsed
        if word == keys.JOB:
            jobs.add(rest)
        if word == keys.LOG:
            logs.add(rest)
        if word in _MORTAL and client.pttl(raw) == -1:
            found[f"{word} keys without TTL"] += 1
        if word in _WITH_ENTRIES:
            found[f"{word} entries"] += client.zcard(raw)
        if word == keys.QUEUE:
            found["queue entries"] += client.xlen(raw)
            if any(group["name"] == keys.GROUP.encode() for group in client.xinfo_groups(raw)):
                found["pending entries"] += client.xpending(raw, keys.GROUP)["pending"]
    found["logs without a job"] = len(logs - jobs)
    return dict(found)
