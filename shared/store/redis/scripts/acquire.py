"""Packs the arguments of `acquire`, which leases queued jobs to a worker, and parses the reply.

Comes from `worker/core/queue_consumer.py`; the jobs go on in `worker/core/loop.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from shared.job.advertised_slots import SlotUpdate
from shared.job.fair_shares import Account, ShareRules
from shared.job.job import NO_ORIGIN, LeasedJob, Origin, Share, shard_in
from shared.job.lanes import SHARED_LANES
from shared.job.placement import PlacementRules
from shared.job.replies import Acquired, AcquiredSuspect
from shared.store.connection import Argument
from shared.store.redis.scripts.renew import pack_charges
from shared.store.redis.scripts.submit import unique_token


def pack_acquire(
    worker: str,
    count: int,
    lease_s: float,
    slots: SlotUpdate,
    rules: ShareRules,
    placement: PlacementRules,
    expected_cost: float,
    charges: Mapping[Account, float],
) -> tuple[Argument, ...]:
    """The script's arguments."""
    lease_ms = int(lease_s * 1000)
    return (
        slots.pool, worker, count, lease_ms, unique_token(), slots.slots, slots.acknowledged,
        expected_cost, rules.half_life_us, pack_charges(charges), placement.window,
        int(placement.patience_s * 1e6), int(placement.overtake_s * 1e6), *SHARED_LANES,
    )  # fmt: skip


def parse_acquired(reply: Sequence[Any]) -> Acquired:
    """The script's reply."""
    now_us, advertised, fence_token, suspects, left_us, *jobs = reply
    leased = parse_jobs(now_us, fence_token, *jobs)
    return Acquired(int(advertised), leased, bool(suspects), left_us / 1e6)


def parse_suspect(reply: Sequence[Any]) -> AcquiredSuspect:
    """The reply of `acquire_suspect`."""
    now_us, in_flight, fence_token, *jobs = reply
    leased = parse_jobs(now_us, fence_token, *jobs)
    return AcquiredSuspect(int(in_flight), leased[0] if leased else None)


def parse_jobs(now_us: bytes, fence_token: bytes, *jobs: Sequence[Any]) -> list[LeasedJob]:
    """Leased jobs, as this script replies them and `submit` sends them in a control message.

    `now_us` is Redis' time, `fence_token` the worker's.
    """
    now, token = int(now_us), fence_token.decode()
    return [
        LeasedJob(
            id=(name := job_id.decode()),
            shard=shard_in(name),
            lease_id=lease_id.decode(),
            generation=int(generation),
            fence_token=token,
            attempt=int(attempt),
            stream=stream == b"1",
            endpoint=endpoint.decode(),
            body=body,
            watchers=watchers.decode(),
            watched=watched == b"1",
            waited_s=max(0, now - int(created_us)) / 1e6,
            origin=Origin.read(origin) if origin else NO_ORIGIN,
            tenant=tenant.decode(),
            share=_share(lane, weight, charged),
            has_deadline=has_deadline == b"1",
            known_blocks=known_blocks[0] if known_blocks else None,
        )
        for (
            job_id, lease_id, generation, attempt, created_us, stream, endpoint, body, watchers,
            watched, origin, tenant, lane, weight, charged, has_deadline, *known_blocks,
        ) in jobs
    ]  # fmt: skip


@lru_cache(maxsize=1024)  # most jobs have the same one
def _share(lane: bytes, weight: bytes, charged: bytes) -> Share:
    return Share(lane.decode(), float(weight or 1), float(charged or 0))
