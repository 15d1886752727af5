"""How a queue drains."""

from __future__ import annotations

import math

import pytest

from gateway.ops.autoscaler.backlog import Backlog, WorkerSupply

FOUR = WorkerSupply(ready=4, loading=(), slots=8)


@pytest.mark.parametrize(
    ("backlog", "supply", "clear_s", "left_at_20_s"),
    [
        # 32 slots free 3.2 times a second
        (Backlog(0, 10), FOUR, 0, 0),
        (Backlog(32, 10), FOUR, 10, 0),
        (Backlog(96, 10), FOUR, 30, 32),
        (Backlog(96, 10, arrivals_per_s=1.6), FOUR, 60, 64),
        (Backlog(96, 10, arrivals_per_s=3.2), FOUR, math.inf, 96),
        (Backlog(96, 10, arrivals_per_s=5.2), FOUR, math.inf, 136),
        # those that have just loaded take as many as they have slots
        (Backlog(16, 10), WorkerSupply(0, ((15, 2),), 8), 15, 0),
        (Backlog(32, 10), WorkerSupply(0, ((15, 2),), 8), 25, 8),
        (Backlog(96, 10), WorkerSupply(4, ((10, 4),), 8), 15, 0),
        (Backlog(96, 10), WorkerSupply(4, ((50, 4),), 8), 30, 32),
        (Backlog(20, 10, arrivals_per_s=1), WorkerSupply(0, ((10, 1), (15, 4)), 8), 15, 0),
        # no workers, and jobs of unknown duration
        (Backlog(5, 10), WorkerSupply(0, (), 8), math.inf, 5),
        (Backlog(5, math.inf), FOUR, math.inf, 5),
        (Backlog(5, math.inf), WorkerSupply(4, ((15, 1),), 8), 15, 0),
        (Backlog(9, math.inf), WorkerSupply(4, ((15, 1),), 8), math.inf, 1),
    ],
)
def test_a_queue_drains(
    backlog: Backlog, supply: WorkerSupply, clear_s: float, left_at_20_s: float
) -> None:
    assert backlog.clear_s(supply) == pytest.approx(clear_s)
    assert backlog.left(supply, 20) == pytest.approx(left_at_20_s)


@pytest.mark.parametrize(
    ("backlog", "supply", "start_s", "drain_s", "more"),
    [
        (Backlog(96, 10), FOUR, 30, 5, 0),  # clear by then
        (Backlog(96, 10), FOUR, 20, 10, 0),  # 32 are left, and 4 take them in 10 s
        (Backlog(96, 10), FOUR, 20, 5, 2),  # 16 more than 4 can take; one takes 12 in 5 s
        (Backlog(96, 10), WorkerSupply(0, (), 8), 20, 0, 12),  # at once: a slot for each
        (Backlog(96, 10), WorkerSupply(0, (), 8), 20, 10, 6),
        (Backlog(96, 10), WorkerSupply(0, ((20, 6),), 8), 20, 10, 0),  # requested already
        (Backlog(100, math.inf), WorkerSupply(0, (), 8), 20, 10, 13),
        (Backlog(3_000_000, 10), FOUR, 20, 5, 249_994),
    ],
)
def test_more_workers(
    backlog: Backlog, supply: WorkerSupply, start_s: float, drain_s: float, more: int
) -> None:
    assert backlog.more(supply, start_s, drain_s) == more
