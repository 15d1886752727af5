"""Which running job a full worker hands back."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from shared.job.fair_shares import Account
from shared.job.job import Share
from shared.job.lanes import CLIENT_LANES, DEFAULT, FLEX, PRIORITY
from shared.job.replies import NextTurn
from worker.core import hand_backs
from worker.core.hand_backs import LEAST_TOKENS, MOST_LEASES, account_of, candidates

POOL = "pool"
GAP = 1000.0


def run(tenant: str = "a", lane: str = DEFAULT, tokens: int = 100, **changes: Any) -> Any:
    job = SimpleNamespace(
        shard=changes.get("shard", 0),
        generation=changes.get("generation", 1),
        tenant=tenant,
        share=Share(lane, 1.0, 0.0),
        has_deadline=changes.get("has_deadline", False),
    )
    buffer = SimpleNamespace(
        movable=changes.get("movable", True),
        discarded=changes.get("discarded", False),
        new_tokens=tokens,
        completion_tokens=tokens,
        prompt_tokens=changes.get("prompt_tokens", 10),
    )
    return SimpleNamespace(job=job, buffer=buffer, final_state=changes.get("final_state", ""))


def choose(*arguments: Any, **options: Any) -> Any:
    """The one that is chosen, or None."""
    found = hand_backs.choose(*arguments, **options)
    assert len(found) <= 1
    return found[0] if found else None


def turn(lane: str = DEFAULT, level: float = 0.0, waiting: int = 1, **levels: float) -> NextTurn:
    """`b` is next; levels of the other tenants in every lane."""
    found = {
        Account(POOL, each, name): value for name, value in levels.items() for each in CLIENT_LANES
    }
    return NextTurn(Account(POOL, lane, "b"), waiting, level, found)


@pytest.mark.parametrize(
    "changes",
    [
        {"shard": 1},
        {"movable": False},
        {"discarded": True},
        {"final_state": "completed"},
        {"lane": ""},
        {"has_deadline": True},
    ],
)
def test_what_is_not_handed_back(changes: dict[str, Any]) -> None:
    fine = run(generation=MOST_LEASES, tokens=LEAST_TOKENS)
    assert candidates([run(**changes), fine], 0) == [fine]


@pytest.mark.parametrize("changes", [{"generation": MOST_LEASES + 1}, {"tokens": LEAST_TOKENS - 1}])
def test_hand_backs_are_bounded_but_not_those_of_the_lane_flex(changes: dict[str, Any]) -> None:
    assert choose([run(**changes)], turn(a=1e6), GAP) is None
    assert choose([run(**changes)], turn(PRIORITY, a=1e6), GAP) is None
    assert choose([run(lane=FLEX, **changes)], turn(FLEX, a=1e6), GAP) is None
    flex = run(lane=FLEX, **changes)
    assert choose([flex], turn(a=0.0), GAP, flex_only=True) is flex
    assert choose([run()], turn(PRIORITY, a=1e6), GAP, flex_only=True) is None


@pytest.mark.parametrize(("level", "yields"), [(1500.0, True), (1000.0, False), (0.0, False)])
def test_only_a_tenant_far_ahead_makes_room(level: float, yields: bool) -> None:
    job = run()
    assert choose([job], turn(a=level), GAP) == (job if yields else None)
    assert choose([job], turn(level=5000.0, a=5000.0 + level), GAP) == (job if yields else None)


def test_it_is_the_tenant_furthest_ahead_for_each_token_to_compute_again() -> None:
    far, cheap, dear = (
        run("c", tokens=300),
        run("a", tokens=40),
        run("a", tokens=40, prompt_tokens=900),
    )
    assert choose([dear, cheap], turn(a=9000.0), GAP) is cheap
    assert choose([far, cheap], turn(a=3000.0, c=6000.0), GAP) is cheap, (
        "twice as far, thrice the cost"
    )
    assert choose([far, cheap], turn(a=3000.0, c=60_000.0), GAP) is far


def test_worse_lanes_make_room_whatever_their_level_the_worst_first() -> None:
    default, flex = run(), run(lane=FLEX)
    assert choose([default, flex], turn(PRIORITY, level=1e6, a=0.0), GAP) is flex
    assert choose([default], turn(PRIORITY, level=1e6, a=0.0), GAP) is default
    assert choose([run(lane=PRIORITY), default], turn(FLEX, a=1e6), GAP) is None, "a better lane"


def test_one_flex_job_makes_room_for_each_job_that_waits_in_a_better_lane() -> None:
    flex = [run(lane=FLEX, tokens=tokens) for tokens in (300, 100, 200)]
    default = run()
    chosen = hand_backs.choose([default, *flex], turn(waiting=2, a=1e6), GAP)
    assert chosen == [flex[1], flex[2]]
    assert hand_backs.choose([default, *flex], turn(waiting=9, a=1e6), GAP) == [
        flex[1],
        flex[2],
        flex[0],
    ]
    assert hand_backs.choose([default, run()], turn(waiting=9, a=1e6), GAP) == [default]
    assert hand_backs.choose(flex, turn(FLEX, waiting=9, a=1e6), GAP) == [flex[1]]


def test_nobody_makes_room_for_its_own_tenant() -> None:
    assert choose([run("b")], turn(level=3000.0, b=3000.0), GAP) is None


@pytest.mark.parametrize("seed", range(20))
def test_the_chosen_job_is_never_one_of_a_better_lane_or_a_lower_level(seed: int) -> None:
    rng = random.Random(seed)
    jobs = [
        run(rng.choice("abc"), rng.choice(CLIENT_LANES), rng.randint(1, 500)) for _ in range(12)
    ]
    levels = {name: rng.uniform(0, 5000) for name in "abc"}
    asked = turn(rng.choice(CLIENT_LANES), levels["b"], **levels)
    chosen = choose(jobs, asked, GAP)
    if chosen is None:
        return
    account = account_of(chosen, POOL)
    ranks = CLIENT_LANES.index(account.lane), CLIENT_LANES.index(asked.account.lane)
    assert ranks[0] > ranks[1] or asked.levels[account] > asked.level + GAP
    assert ranks[0] >= ranks[1]
