"""The lease renewer: when it renews. What a renewal does is in tests/redis/test_lease.py."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from worker.core.lease import LeaseRenewer

LEASE_S = 9.0


class StubLease:
    """Counts renewals; each raises `error`, if it is set."""

    worker_id = "w-1"
    lease_s = LEASE_S

    def __init__(self, shards: int = 1) -> None:
        self.fence_tokens = [""] * shards
        self.renewals = [0] * shards
        self.error: Exception | None = None

    async def renew(self, shard: int) -> None:
        self.renewals[shard] += 1
        if self.error is not None:
            raise self.error


class Bench:
    """A renewer, its lease, and whether the engine makes progress."""

    def __init__(self, shards: int = 1) -> None:
        self.lease = StubLease(shards)
        self.progressing = True
        lease: Any = self.lease
        self.renewer = LeaseRenewer(lease, lambda: self.progressing)


async def test_a_renewal_that_hangs_is_cancelled_and_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    bench.lease.lease_s = 0.03
    calls = 0

    async def hang(_: int) -> None:
        nonlocal calls
        calls += 1
        await asyncio.Event().wait()

    monkeypatch.setattr(bench.lease, "renew", hang)
    async with asyncio.timeout(30):
        assert not await bench.renewer.renew(0)
        assert not await bench.renewer.renew(0)
    assert calls == 2


async def test_a_shard_that_does_not_answer_does_not_delay_the_others() -> None:
    bench = Bench(shards=2)
    renewed = asyncio.Event()

    async def renew(shard: int) -> None:
        if shard == 0:
            await asyncio.Event().wait()
        renewed.set()

    bench.lease.renew = renew  # type: ignore[method-assign]
    running = asyncio.create_task(bench.renewer.run())
    async with asyncio.timeout(30):
        await renewed.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
