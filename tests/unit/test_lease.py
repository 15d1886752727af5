"""Leases: renewed while the engine works, given up before they end when Redis is silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from shared.redis import RedisConnectionError
from worker import lease as module
from worker.lease import LeaseKeeper

LEASE_S = 9.0
AGAIN_S = LEASE_S / 3
Answers = Callable[[list[str]], dict[str, str]]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def run(name: str) -> SimpleNamespace:
    return SimpleNamespace(job=SimpleNamespace(id=name))


class Post:
    """A keeper of leases, the Redis it calls and the clock it looks at."""

    def __init__(self, clock: Clock, *jobs: str) -> None:
        self.clock = clock
        self.runs: dict[str, Any] = {name: run(name) for name in jobs}
        self.renewals: list[list[str]] = []
        self.answer: Answers = lambda jobs: {}
        self.progresses = True
        self.lost: dict[str, float] = {}
        queue: Any = self
        self.keeper = LeaseKeeper(
            queue, "w-1", LEASE_S, self.runs, lambda: self.progresses, self._on_lost
        )

    async def renew(self, worker: str, jobs: list[Any]) -> dict[str, str]:
        assert worker == "w-1"
        ids = [job.id for job in jobs]
        self.renewals.append(ids)
        return self.answer(ids)

    def _on_lost(self, job: Any, state: str) -> None:
        self.lost[job.id] = self.clock.now
        self.states = state
        del self.runs[job.id]

    async def turn(self, after_s: float = AGAIN_S) -> None:
        """What the keeper does when it wakes up."""
        self.clock.now += after_s
        await self.keeper.renew()


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


async def test_with_nothing_in_hand_redis_is_left_alone(clock: Clock) -> None:
    post = Post(clock)
    await post.turn()
    assert post.renewals == []


async def test_what_redis_says_is_lost_is_lost(clock: Clock) -> None:
    post = Post(clock, "a", "b")
    post.answer = lambda jobs: {"a": "cancelled"}
    await post.turn()
    assert list(post.lost) == ["a"]
    assert post.states == "cancelled"


async def test_the_jobs_of_a_hung_engine_are_not_renewed(clock: Clock) -> None:
    post = Post(clock, "a")
    post.progresses = False
    for _ in range(5):
        await post.turn()
    assert post.renewals == []
    assert post.lost == {}
    post.progresses = True
    await post.turn()
    assert post.renewals == [["a"]]


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
@pytest.mark.parametrize("takes_s", [0.0, AGAIN_S], ids=["at once", "after its time limit"])
async def test_when_redis_is_silent_all_is_dropped_before_the_leases_end(
    clock: Clock, error: Exception, takes_s: float
) -> None:
    post = Post(clock, "a", "b")
    await post.turn()
    renewed = clock.now

    def fail(_: list[str]) -> dict[str, str]:
        clock.now += takes_s
        raise error

    post.answer = fail
    while post.runs:
        await post.turn()
        assert clock.now < renewed + LEASE_S
    assert set(post.lost) == {"a", "b"}
    assert post.states == "unreachable"


async def test_the_lease_counts_from_before_the_call(clock: Clock) -> None:
    post = Post(clock, "a")

    def slow(_: list[str]) -> dict[str, str]:
        clock.now += 2.5
        return {}

    post.answer = slow
    await post.turn()
    post.answer = refuse
    await post.turn(AGAIN_S - 1.0)  # 4.5 s after the last renewal was sent
    assert set(post.lost) == {"a"}


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


async def test_a_call_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    post = Post(Clock(), "a")
    monkeypatch.setattr(module, "_SAFETY", 0.0)
    monkeypatch.setattr(post.keeper, "_lease_s", 0.03)

    async def hang(worker: str, jobs: list[Any]) -> dict[str, str]:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(post, "renew", hang)
    async with asyncio.timeout(30):
        await post.keeper.renew()
    assert set(post.lost) == {"a"}


async def test_it_renews_three_times_a_lease(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    post = Post(clock, "a")
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 4:
            raise asyncio.CancelledError

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await post.keeper.run()
    assert slept == [AGAIN_S] * 4
    assert len(post.renewals) == 3
