"""`acquire`: lease queued jobs to a worker, best lane first, and advertise the slots left over.

Comes from `worker/core/queue_consumer.py`; the jobs go on in `worker/core/executor.py`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

from shared.job.advertised_slots import SlotUpdate
from shared.job.job import NO_ORIGIN, LeasedJob, Origin, shard_in
from shared.job.lanes import SHARED_LANES
from shared.store.redis.pipelined_connection import Argument, PipelinedConnection
from shared.store.redis.scripts.runner import Scripts
from shared.store.redis.scripts.submit import unique_token


class Acquired(NamedTuple):
    """The reply."""

    advertised: int
    """Slots that Redis advertises now: what the update offered less the jobs that were leased; 0 if
    more jobs may be waiting."""
    jobs: list[LeasedJob]
    suspects: bool
    """Suspects of the pool wait in the shard."""


async def call(
    scripts: Scripts, shard: int, *, worker: str, count: int, lease_s: float, slots: SlotUpdate
) -> Acquired:
    """Lease at most `count` jobs of `slots.pool` to `worker`. Raises redis' errors."""
    arguments = _arguments(worker, count, lease_s, slots)
    return _parse(await scripts.run("acquire", shard, arguments))


def start_on(
    connection: PipelinedConnection,
    scripts: Scripts,
    shard: int,
    *,
    worker: str,
    count: int,
    lease_s: float,
    slots: SlotUpdate,
) -> Coroutine[Any, Any, Acquired]:
    """`call` on a connection of the caller's; it has been sent when this returns."""
    arguments = _arguments(worker, count, lease_s, slots)
    return _acquired(scripts.start_on(connection, "acquire", shard, arguments))


async def _acquired(reply: Coroutine[Any, Any, Any]) -> Acquired:
    return _parse(await reply)


def _arguments(worker: str, count: int, lease_s: float, slots: SlotUpdate) -> tuple[Argument, ...]:
    lease_ms = int(lease_s * 1000)
    return (
        slots.pool, worker, count, lease_ms, unique_token(), slots.slots, slots.acknowledged,
        *SHARED_LANES,
    )  # fmt: skip


def _parse(reply: Sequence[Any]) -> Acquired:
    now_us, advertised, fence_token, suspects, *jobs = reply
    return Acquired(int(advertised), parse_jobs(now_us, fence_token, *jobs), bool(suspects))


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
            origin=Origin.read(rest[0]) if rest and rest[0] else NO_ORIGIN,
            tenant=rest[1].decode() if len(rest) > 1 else "",
        )
        for (
            job_id, lease_id, generation, attempt, created_us, stream, endpoint, body, watchers,
            watched, *rest,
        ) in jobs
    ]  # fmt: skip
