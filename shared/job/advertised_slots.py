"""Advertised slots: free slots of a worker that the next jobs get without waiting to be claimed.

A worker advertises with its acquire and emit calls. `submit` leases jobs straight to the worker
with the most advertised slots, counts them down, and sends the jobs on the worker's control
channel.
"""

from __future__ import annotations

from typing import NamedTuple

UNKNOWN = ""
"""In place of a number of slots: what Redis last recorded is not known to the worker."""


class SlotUpdate(NamedTuple):
    """What a worker advertises in one shard."""

    pool: str
    advertiser: str
    """The worker and its lease: `advertiser`."""
    slots: int
    """Free slots."""
    acknowledged: int | str
    """Slots left of its last update by the worker's count, or UNKNOWN. If Redis has fewer, the
    difference is jobs that were leased to the worker and are still on their way to it."""


NO_UPDATE = SlotUpdate("", "", 0, UNKNOWN)


def advertiser(worker: str, lease_s: float) -> str:
    """How a worker that takes leases of this length advertises; a script may have to make it."""
    return f"{worker} {int(lease_s * 1000)}"
