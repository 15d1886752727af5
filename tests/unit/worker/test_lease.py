"""The lease renewer and a Redis that does not answer. Renewals: tests/redis/test_lease.py."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from worker.core.lease import LeaseRenewer


def renewer(shards: int, lease_s: float, renew: Any) -> LeaseRenewer:
    """Renews by calling `renew` with the shard's number."""
    lease: Any = SimpleNamespace(
        worker_id="w-1", lease_s=lease_s, fence_tokens=[""] * shards, renew=renew
    )
    return LeaseRenewer(lease, lambda: True)


async def test_a_renewal_that_hangs_is_cancelled_and_repeated() -> None:
    calls = 0

    async def hang(_: int) -> None:
        nonlocal calls
        calls += 1
        await asyncio.Event().wait()

    hanging = renewer(1, 0.03, hang)
    async with asyncio.timeout(30):
        assert not await hanging.renew(0)
        assert not await hanging.renew(0)
    assert calls == 2


async def test_a_shard_that_does_not_answer_does_not_delay_the_others() -> None:
    renewed = asyncio.Event()

    async def renew(shard: int) -> None:
        if shard == 0:
            await asyncio.Event().wait()
        renewed.set()

    running = asyncio.create_task(renewer(2, 9.0, renew).run())
    async with asyncio.timeout(30):
        await renewed.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
