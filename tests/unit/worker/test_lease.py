"""Leases: renewed while the engine works, and as soon as Redis answers again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from shared.platform.redis_client import RedisConnectionError
from shared.protocol.scripts.renew import Renewal
from worker.claim import lease as module
from worker.claim.lease import Lease, LeaseRenewer

WORKER = "w-1"
LEASE_S = 9.0
AGAIN_S = LEASE_S / 3
Answers = Callable[[list[str]], dict[str, str]]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Ears(SimpleNamespace):
    """A buffer, as far as a lease is concerned."""

    fence_token = "of the acquire"
    heard: tuple[str, bool] | None = None

    def set_watchers(self, watchers: str, *, watched: bool) -> None:
        self.heard = (watchers, watched)


def run(name: str, shard: int = 0) -> Ears:
    return Ears(job=SimpleNamespace(id=name, shard=shard))


class Post:
    """A lease and its keeper, the Redis they call and the clock they look at."""

    def __init__(self, clock: Clock, *jobs: str, shards: int = 1) -> None:
        self.clock = clock
        self.runs: dict[str, Any] = {name: run(name) for name in jobs}
        self.renewals: list[list[str]] = []
        self.asked: list[tuple[int, str]] = []
        """Shard and fencing token of each renewal."""
        self.fences = [""] * shards
        self.listeners: dict[str, tuple[str, bool]] = {}
        self.answer: Answers = lambda jobs: {}
        self.progresses = True
        self.lost: dict[str, float] = {}
        self.shards = shards
        self.n_losses = 0
        queue: Any = self
        self.lease = Lease(queue, WORKER, LEASE_S, lambda: list(self.runs.values()), self._on_lost)
        self.keeper = LeaseRenewer(self.lease, lambda: self.progresses)

    def losses(self, shard: int) -> int:
        return self.n_losses

    async def renew(
        self, shard: int, worker: str, fence_token: str, lease_s: float, jobs: list[Any]
    ) -> Renewal:
        assert (worker, lease_s) == (WORKER, LEASE_S)
        ids = [job.id for job in jobs]
        self.renewals.append(ids)
        self.asked.append((shard, fence_token))
        next_fence_token = f"e-{len(self.asked)}"
        lost = self.answer(ids)
        for _ in range(3):
            await asyncio.sleep(0)  # the reply takes its time, little as it is
        if not fence_token or fence_token != self.fences[shard]:
            self.fences[shard] = next_fence_token
        listeners = {name: self.listeners.get(name, ("gw", False)) for name in ids}
        for name in lost:
            del listeners[name]
        return Renewal(self.fences[shard], lost, listeners)

    def _on_lost(self, job: Any, state: str) -> None:
        self.lost[job.id] = self.clock.now
        self.states = state
        del self.runs[job.id]

    async def turn(self, after_s: float = AGAIN_S) -> None:
        """What the keeper does when it wakes up."""
        self.clock.now += after_s
        for shard in range(self.shards):
            await self.keeper.renew(shard)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def refuse(_: list[str]) -> dict[str, str]:
    raise RedisConnectionError("refused")


async def test_everything_in_hand_is_renewed_in_one_call(clock: Clock) -> None:
    post = Post(clock, "a", "b", "c")
    for _ in range(3):
        await post.turn()
    assert post.renewals == [["a", "b", "c"]] * 3
    assert post.lost == {}


async def test_with_nothing_in_hand_the_fence_token_is_renewed(clock: Clock) -> None:
    """So that the jobs to come are leased in one, and may be spoken of at once."""
    post = Post(clock)
    for _ in range(2):
        await post.turn()
    assert post.renewals == [[], []]
    assert post.asked == [(0, ""), (0, "e-1")]
    assert post.lease.fence_tokens == ["e-1"]


async def test_what_redis_says_is_lost_is_lost(clock: Clock) -> None:
    post = Post(clock, "a", "b")
    post.answer = lambda jobs: {"a": "cancelled"}
    await post.turn()
    assert list(post.lost) == ["a"]
    assert post.states == "cancelled"
    assert list(post.runs) == ["b"]


async def test_the_jobs_of_a_hung_engine_are_not_renewed(clock: Clock) -> None:
    post = Post(clock, "a")
    post.progresses = False
    for _ in range(2):
        await post.turn()
    assert post.renewals == []
    assert post.lost == {}
    post.progresses = True
    await post.turn(0.1)
    assert post.renewals == [["a"]]
    post.progresses = False
    for _ in range(5):
        await post.turn()
    assert post.renewals == [["a"]]
    assert post.lost == {}


async def test_an_engine_that_goes_on_after_long_has_its_later_jobs_renewed(clock: Clock) -> None:
    post = Post(clock)
    post.progresses = False
    for _ in range(5):
        await post.turn()
    post.progresses = True
    await post.turn()
    post.runs["a"] = run("a")
    for _ in range(5):
        await post.turn()
    assert post.lost == {}
    assert post.renewals[-1] == ["a"]


async def test_one_failure_is_borne(clock: Clock) -> None:
    post = Post(clock, "a")
    post.answer = refuse
    await post.turn()
    assert post.lost == {}
    post.answer = lambda jobs: {}
    for _ in range(4):
        await post.turn()
    assert post.lost == {}


@pytest.mark.parametrize(
    "error", [RedisConnectionError("refused"), ConnectionResetError("reset"), TimeoutError("late")]
)
async def test_while_redis_is_silent_the_jobs_stay_and_are_renewed_when_it_is_back(
    clock: Clock, error: Exception
) -> None:
    """Nobody else can have taken them if Redis stood still; if somebody has, Redis says so."""
    post = Post(clock, "a", "b")
    await post.turn()

    def fail(_: list[str]) -> dict[str, str]:
        raise error

    post.answer = fail
    for _ in range(10):  # more than three leases
        await post.turn()
    assert post.lost == {}
    post.answer = lambda jobs: {"b": "failed"}
    await post.turn()
    assert post.renewals[-1] == ["a", "b"]
    assert list(post.lost) == ["b"]


async def test_a_worker_that_stood_still_renews_what_it_holds(clock: Clock) -> None:
    post = Post(clock, "a")
    await post.turn()
    await post.turn(0.9 * LEASE_S)
    assert post.renewals == [["a"]] * 2
    assert post.lost == {}


async def test_jobs_that_come_after_a_long_idle_time_are_not_dropped_at_once(
    clock: Clock,
) -> None:
    post = Post(clock)
    for _ in range(10):
        await post.turn()
    post.runs["a"] = run("a")
    post.answer = refuse
    await post.turn()
    assert post.lost == {}


async def test_a_call_that_hangs_is_ended_and_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    post = Post(Clock(), "a")
    post.lease.lease_s = 0.03
    calls = 0

    async def hang(*_: Any) -> Renewal:
        nonlocal calls
        calls += 1
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(post, "renew", hang)
    async with asyncio.timeout(30):
        assert not await post.keeper.renew(0)
        assert not await post.keeper.renew(0)
    assert calls == 2
    assert post.lost == {}


async def test_it_renews_three_times_a_lease(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    post = Post(clock, "a")
    slept: list[float] = []

    pause = asyncio.sleep

    async def sleep(seconds: float) -> None:
        await pause(0)
        if seconds:  # else it is the fake queue's
            slept.append(seconds)
        if len(slept) == 4:
            raise asyncio.CancelledError

    monkeypatch.setattr("worker.claim.lease.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await post.keeper.run()
    assert slept == [AGAIN_S] * 4
    assert len(post.renewals) == 4  # at once, and after each pause


async def test_after_a_failure_it_tries_sooner(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = Post(clock, "a")
    post.answer = refuse
    slept: list[float] = []
    pause = asyncio.sleep

    async def sleep(seconds: float) -> None:
        await pause(0)
        if seconds:
            slept.append(seconds)
        if len(slept) == 2:
            post.answer = lambda jobs: {}
        if len(slept) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr("worker.claim.lease.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await post.keeper.run()
    assert slept == [LEASE_S / 12, LEASE_S / 12, AGAIN_S]


# --- the fencing token ---


async def test_each_shard_has_an_fence_token_of_its_own(clock: Clock) -> None:
    post = Post(clock, shards=3)
    post.runs |= {"a": run("a"), "b": run("b", 2), "c": run("c", 2)}
    await post.turn()
    assert post.renewals == [["a"], [], ["b", "c"]]
    assert post.lease.fence_tokens == post.fences == ["e-1", "e-2", "e-3"]
    post.fences[1] = ""
    await post.lease.renew(1)
    assert post.lease.fence_tokens == post.fences == ["e-1", "e-4", "e-3"]


async def test_who_is_renewed_knows_the_fence_token_and_who_listens(clock: Clock) -> None:
    post = Post(clock, "a", "b", "lost")
    post.listeners = {"a": ("gw-1 gw-2", True)}
    post.answer = lambda jobs: {"lost": "cancelled"}
    buffers = dict(post.runs)
    await post.lease.renew(0)
    assert buffers["a"].heard == ("gw-1 gw-2", True)
    assert buffers["b"].heard == ("gw", False)
    assert buffers["a"].fence_token == buffers["b"].fence_token == "e-1"
    assert buffers["lost"].heard == ("", False)
    assert list(post.lost) == ["lost"]


async def test_who_comes_while_a_renewal_is_on_its_way_is_not_in_its_fence_token(
    clock: Clock,
) -> None:
    """Redis may have been asked before the job was leased: nothing is known of it."""
    post = Post(clock, "a")
    renewing = asyncio.create_task(post.lease.renew(0))
    await asyncio.sleep(0)
    post.runs["b"] = late = run("b")
    await renewing
    assert post.renewals == [["a"]]
    assert (late.fence_token, late.heard) == (Ears.fence_token, None)


async def test_renewals_of_a_shard_come_one_after_another(clock: Clock) -> None:
    """Else the reply to the older one might bring back a fencing token that is over."""
    post = Post(clock, "a", shards=2)
    await asyncio.gather(post.lease.renew(0), post.lease.renew(0), post.lease.renew(1))
    assert sorted(post.asked) == [(0, ""), (0, "e-1"), (1, "")]
    assert post.lease.fence_tokens == post.fences


async def test_an_fence_token_that_was_refused_is_asked_for_no_more(clock: Clock) -> None:
    post = Post(clock, "a")
    await post.turn()
    post.lease.invalidate(0, "an older one")
    assert post.lease.fence_tokens == ["e-1"]
    post.lease.invalidate(0, "e-1")
    assert post.lease.fence_tokens == [""]
    await post.turn()
    assert post.asked == [(0, ""), (0, "")]
    assert post.lease.fence_tokens == post.fences == ["e-2"]


async def test_a_renewal_that_fails_changes_nothing(clock: Clock) -> None:
    post = Post(clock, "a")
    await post.turn()
    post.answer = refuse
    with pytest.raises(RedisConnectionError):
        await post.lease.renew(0)
    assert post.lease.fence_tokens == ["e-1"]
    assert post.lost == {}
    post.answer = lambda jobs: {}
    await post.lease.renew(0)  # which does not wait for the one that has failed
    assert post.asked == [(0, ""), (0, "e-1"), (0, "e-1")]


async def test_after_a_lost_connection_there_is_no_fence_token(clock: Clock) -> None:
    """What answers now may be another Redis, which knows less of what was leased."""
    post = Post(clock, "a", shards=2)
    await post.turn()
    assert post.lease.fence_tokens == ["e-1", "e-2"]
    post.n_losses += 1
    assert post.lease.fence_tokens == ["", ""]
    await post.lease.renew(1)
    assert post.asked[-1] == (1, "")
    assert post.lease.fence_tokens == ["", "e-3"]
    await post.lease.renew(0)
    assert post.lease.fence_tokens == post.fences


async def test_an_fence_token_that_comes_over_a_connection_that_is_lost_meanwhile_is_none(
    clock: Clock,
) -> None:
    post = Post(clock, "a")
    renewing = asyncio.create_task(post.lease.renew(0))
    await asyncio.sleep(0)
    post.n_losses += 1
    await renewing
    assert post.lease.fence_tokens == [""]
