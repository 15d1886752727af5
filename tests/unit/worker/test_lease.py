"""The lease renewer: when it renews. What a renewal does is in tests/redis/test_lease.py."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from shared.store.interface import StoreUnavailable
from worker.core.lease import LeaseRenewer

LEASE_S = 9.0
THIRD_S = LEASE_S / 3


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


async def test_nothing_is_renewed_while_the_engine_makes_no_progress(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.progressing = False
    for _ in range(2):
        assert await bench.renewer.renew(0), "trying sooner would not help"
    assert bench.lease.renewals == [0]
    assert "the engine makes no progress" in caplog.text
    bench.progressing = True
    assert await bench.renewer.renew(0)
    assert bench.lease.renewals == [1]


@pytest.mark.parametrize("error", [StoreUnavailable("refused"), TimeoutError("late")])
async def test_while_redis_does_not_answer_renewals_fail_and_go_on(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    bench.lease.error = error
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            assert not await bench.renewer.renew(0)
        assert [record.message for record in caplog.records] == [
            f"leases not renewed, trying again: {error}"
        ]
        bench.lease.error = None
        assert await bench.renewer.renew(0)
        assert caplog.records[-1].message.startswith("leases renewed after ")
        assert await bench.renewer.renew(0)
    assert len(caplog.records) == 2, "one line when it begins and one when it is over"
    assert bench.lease.renewals == [12]


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


async def sleeps_of(bench: Bench, count: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between the first renewals; from the third pause on Redis answers."""
    slept: list[float] = []
    sleep = asyncio.sleep

    async def record(seconds: float) -> None:
        await sleep(0)
        slept.append(seconds)
        if len(slept) == 2:
            bench.lease.error = None
        if len(slept) == count:
            raise asyncio.CancelledError

    monkeypatch.setattr("worker.core.lease.asyncio.sleep", record)
    with pytest.raises(asyncio.CancelledError):
        await bench.renewer.run()
    return slept


async def test_leases_are_renewed_three_times_in_their_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    assert await sleeps_of(bench, 4, monkeypatch) == [THIRD_S] * 4
    assert bench.lease.renewals == [4]  # at once, and after each pause but the last


async def test_after_a_failure_it_tries_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.lease.error = StoreUnavailable("refused")
    assert await sleeps_of(bench, 3, monkeypatch) == [LEASE_S / 12, LEASE_S / 12, THIRD_S]


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
