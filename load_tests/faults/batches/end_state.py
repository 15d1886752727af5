"""What a run has left in Redis and in the storage."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from load_tests.faults.batches.history import completions
from load_tests.faults.batches.maintained_fleet import MaintainedFleet
from load_tests.faults.batches.sums import several_of_an_owner
from load_tests.harness.leftovers import leftovers, word_of
from shared.storage import Storage
from shared.store import keys

_GONE = {
    "job",
    "log",
    "batch_lines",
    "batch_lock",
    "open_batches",
    "document_users",
}
"""Kinds of keys that no ended batch has."""
_EMPTY = {"jobs"}
"""Kinds of sorted sets that have nothing of deleted jobs."""


@dataclass(frozen=True, slots=True)
class EndState:
    """What was found."""

    ends: Counter[str]
    """How often each job came to its end with an answer."""
    owners: list[int]
    """How many each batch has had."""
    unrecorded: int
    """Blobs of batches that no record names."""
    failures: list[str]


async def check_end_state(fleet: MaintainedFleet, ids: Sequence[str]) -> EndState:
    """Look at Redis and the storage after all `ids` have ended."""
    client: Any = fleet.fleet.client
    left = await asyncio.to_thread(leftovers, client)
    counts = Counter(left) + await asyncio.to_thread(_keys_left, client)
    failures = [f"left over: {count} {name}" for name, count in counts.items()]
    recorded = set()
    for word in ("batch_output", "batch_errors"):
        for batch_id in ids:
            for segment in client.lrange(keys.first(word, batch_id), 0, -1):
                recorded.add(segment.decode().partition(" ")[2])
    storage = Storage.open(fleet.storage.url)
    blobs = {blob.name async for blob in storage.list("batches")}
    unrecorded = blobs - recorded
    failures += several_of_an_owner(unrecorded)
    failures += [f"the storage has lost {name}" for name in sorted(recorded - blobs)]
    return EndState(
        await asyncio.to_thread(completions, fleet.redis_folder),
        [int(client.hget(keys.first("batch", each), "epoch")) for each in ids],
        len(unrecorded),
        failures,
    )


def _keys_left(client: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    for raw in client.scan_iter("flotilla:*", count=1000):
        kind, _ = word_of(raw)
        # The log of a job that was deleted lives until its tokens are counted.
        if kind in _GONE and not (kind == "log" and client.pttl(raw) != -1):
            found[f"{kind} keys"] += 1
        elif kind in _EMPTY:
            found[f"{kind} entries"] += client.zcard(raw)
    return found
