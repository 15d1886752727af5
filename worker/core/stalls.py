"""Finds loops of a worker that stand still although Redis answers. Pure: times in, a reason out.

Such a worker holds slots or output that no client gets. It drains and exits.
"""

from __future__ import annotations

from collections.abc import Sequence

STALL_S = 60.0
"""Far longer than the time-outs of one turn of these loops together."""


class Stalled(Exception):
    """A loop of the worker stands still; the message names it."""


def reason(
    now: float,
    claiming_since: Sequence[float | None],
    sending_since: Sequence[float | None],
    renewed_at: Sequence[float],
) -> str | None:
    """Why the worker has to end; None while all is well. Times are of the monotonic clock.

    `claiming_since`: for each server, when the claimer's present turn began (None: it has ended);
    `sending_since`: for each shard, when the call in flight was first sent (None: there is none);
    `renewed_at`: for each shard, when Redis last renewed the worker's leases.
    """
    for server, since in enumerate(claiming_since):
        if since is not None and now - since > STALL_S:
            return f"the claims on Redis server {server} have stood still for {now - since:.0f} s"
    for shard, (since, renewed) in enumerate(zip(sending_since, renewed_at, strict=True)):
        # While Redis refuses or does not answer, output waits for it: no reason to end.
        if since is not None and now - since > STALL_S and renewed > since + STALL_S / 2:
            return f"output of shard {shard} was not sent for {now - since:.0f} s"
    return None
