"""`renew`: extend a worker's leases, and give it what it needs to write.

Called by `worker/core/lease.py` three times a lease, and whenever a write was refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shared.job.job import LeasedJob
from shared.store.redis.pipelined_connection import Argument
from shared.store.redis.scripts.runner import Scripts
from shared.store.redis.scripts.submit import unique_token


@dataclass(frozen=True, slots=True)
class Renewal:
    """The reply."""

    fence_token: str
    """The worker's from now on."""
    lost: Mapping[str, str]
    """Jobs that the worker does not hold any more: id -> state, `gone` if there is no record."""
    watchers: Mapping[str, tuple[str, bool]]
    """Of the other jobs: id -> the record's `watchers` and `watched`."""


async def call(
    scripts: Scripts,
    shard: int,
    *,
    worker: str,
    fence_token: str,
    lease_s: float,
    jobs: Iterable[LeasedJob],
) -> Renewal:
    """Renew the leases of all jobs that the worker holds in the shard. Raises redis' errors."""
    held: list[str] = [word for job in jobs for word in (job.id, job.lease_id)]
    arguments: tuple[Argument, ...] = (
        worker,
        fence_token,
        unique_token(),
        int(lease_s * 1000),
        *held,
    )
    reply = await scripts.run("renew", shard, arguments)
    fence_token, *words = [word.decode() for word in reply]
    lost, watchers = {}, {}
    for job_id, state, gateways, watched in zip(*(words[n::4] for n in range(4)), strict=True):
        if state:
            lost[job_id] = state
        else:
            watchers[job_id] = (gateways, watched == "1")
    return Renewal(fence_token, lost, watchers)
