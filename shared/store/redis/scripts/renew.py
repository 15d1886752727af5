"""Packs the arguments of `renew`, which renews a worker's leases, and parses the reply.

Comes from `worker/core/lease.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from shared.job.fair_shares import Account, ShareRules
from shared.job.job import LeasedJob
from shared.job.packing import pack
from shared.job.replies import Renewal
from shared.store.connection import Argument
from shared.store.redis.scripts.submit import unique_token


def pack_renew(
    worker: str,
    fence_token: str,
    lease_s: float,
    jobs: Iterable[LeasedJob],
    rules: ShareRules,
    charges: Mapping[Account, float],
) -> tuple[Argument, ...]:
    """The script's arguments."""
    head = worker, fence_token, unique_token(), int(lease_s * 1000), rules.half_life_us
    return (*head, pack_charges(charges), *held_pairs(jobs))


def pack_charges(charges: Mapping[Account, float]) -> bytes:
    """What is added to levels; empty if that is nothing."""
    flat: list[object] = []
    for account, cost in charges.items():
        if cost:
            flat += (f"{account.pool}:{account.lane}", account.tenant, cost)
    return pack(flat) if flat else b""


def parse_renewal(reply: Sequence[bytes]) -> Renewal:
    """The script's reply."""
    fence_token, *words = [word.decode() for word in reply]
    lost, watchers = {}, {}
    for job_id, state, gateways, watched in zip(*(words[n::4] for n in range(4)), strict=True):
        if state:
            lost[job_id] = state
        else:
            watchers[job_id] = (gateways, watched == "1")
    return Renewal(fence_token, lost, watchers)


def held_pairs(jobs: Iterable[LeasedJob]) -> list[str]:
    """What a worker presents of its jobs: flat id, lease_id, ..."""
    return [word for job in jobs for word in (job.id, job.lease_id)]
