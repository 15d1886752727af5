"""Which queues a worker with LoRA adapters claims from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.core.adapter_turns import TURN_S, QueuesSnapshot, turns

QUEUES = ("p+a", "p+b", "p+c")


def snapshot(
    waiting: str = "",
    running: dict[str, float] | None = None,
    served: dict[str, int] | None = None,
    places: int = 2,
) -> QueuesSnapshot:
    """Queues are named by their last letter."""
    return QueuesSnapshot(
        pool="p",
        adapters=QUEUES,
        waiting={f"p+{name}" for name in waiting},
        running_s={f"p+{name}": seconds for name, seconds in (running or {}).items()},
        served={name if name == "p" else f"p+{name}": n for name, n in (served or {}).items()},
        places=places,
    )


@pytest.mark.parametrize(
    ("now", "order", "places", "held_back"),
    [
        (snapshot(), "p", 2, False),
        (snapshot("ab"), "pab", 2, False),
        (snapshot("ab", served={"p": 1, "a": 2}), "bpa", 2, False),
        (snapshot("a", {"a": 0.1}, {"a": 5, "p": 4}), "pa", 1, False),
        # All places are taken: what waits for one stays in Redis.
        (snapshot("abc", {"a": 0.1, "b": 0.2}), "pab", 0, True),
        (snapshot("c", {"a": 0.1, "b": 0.2}), "p", 0, True),
        # After its turn the adapter that has run longest gets no new jobs.
        (snapshot("abc", {"a": TURN_S, "b": TURN_S + 1}), "pa", 0, True),
        (snapshot("ac", {"a": TURN_S}, places=1), "p", 0, True),
        # Nothing waits for its place: it goes on.
        (snapshot("ab", {"a": 60, "b": 60}), "pab", 0, False),
        # A place is free: the one that was served longest ago takes it.
        (snapshot("abc", served={"a": 3, "b": 2, "c": 1}, places=1), "pcba", 1, True),
        (snapshot("ab", places=0), "p", 0, True),
    ],
)
def test_the_decision(now: QueuesSnapshot, order: str, places: int, *, held_back: bool) -> None:
    decision = turns(now)
    assert "".join(name[-1] for name in decision.order) == order
    assert (decision.places, decision.held_back) == (places, held_back)


@given(
    arrivals=st.lists(st.sampled_from(QUEUES), min_size=1, max_size=60),
    places=st.integers(1, 3),
    hot=st.integers(0, 40),
)
def test_every_job_is_served_within_a_few_turns(arrivals: list[str], places: int, hot: int) -> None:
    """One slot for each place, jobs of a second: a hot adapter delays others by its turn only."""
    waiting = {name: arrivals.count(name) for name in QUEUES}
    waiting["p+a"] += hot
    running: dict[str, float] = {}
    served: dict[str, int] = {}
    waited = dict.fromkeys(QUEUES, 0)
    for second in range(1, 400):
        now = QueuesSnapshot(
            "p", QUEUES, [name for name in QUEUES if waiting[name]], running, served, places
        )
        order, free, _ = turns(now)
        taken = []
        for name in order:
            if name == "p" or len(taken) == places or (name not in running and not free):
                continue
            free -= name not in running
            waiting[name] -= 1
            served[name] = second
            taken.append(name)
        running = {name: running.get(name, 0.0) + 1.0 for name in taken}
        assert len(running) <= places
        for name in QUEUES:
            waited[name] = waited[name] + 1 if waiting[name] and name not in taken else 0
            assert waited[name] <= 4 * (TURN_S + 2)
        if not any(waiting.values()):
            return
    pytest.fail(f"jobs are left: {waiting}")
