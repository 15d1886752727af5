"""The verdict about the fleet: its problems, how bad they are, and since when."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ops.overview.models import (
    FleetState,
    LaneOverview,
    PoolOverview,
    Problem,
    RedisOverview,
    WorkerOverview,
)
from gateway.ops.overview.problems import find_problems
from gateway.ops.overview.verdict import ProblemLog, verdict
from shared.fleet.limits import Level
from shared.job.states import WorkerState

NOW = 1_000_000.0
SCALE = {"silent": False, "age_s": 20.0, "decided_at": NOW - 20, "wanted": 2, "most": 5}


def worker(worker_id: str, **changes: Any) -> WorkerOverview:
    fields = {"state": WorkerState.READY, "heartbeat_age_s": 0.5} | changes
    return WorkerOverview(id=worker_id, pool="qwen", **fields)


def lost(worker_id: str, ago_s: float, **changes: Any) -> WorkerOverview:
    return worker(worker_id, state="lost", lost=True, lost_since=NOW - ago_s, **changes)


def pool(*lanes: LaneOverview, **changes: Any) -> PoolOverview:
    fields: dict[str, Any] = {
        "pool": "qwen",
        "slots": 8,
        "busy": 4,
        "running": 4,
        "workers_ready": 2,
        "max_depth": 1000,
        "lanes": lanes,
        "waiting": sum(lane.waiting for lane in lanes),
        "oldest_wait_s": max((lane.oldest_wait_s for lane in lanes), default=0.0),
    }
    return PoolOverview(**(fields | changes))


def lane(name: str = "default", waiting: int = 9, oldest_s: float = 1.0) -> LaneOverview:
    return LaneOverview(lane=name, waiting=waiting, oldest_wait_s=oldest_s)


def fleet(*pools: PoolOverview, **changes: Any) -> FleetState:
    fields: dict[str, Any] = {"workers": [worker("w-1"), worker("w-2")]}
    return FleetState(NOW, pools or (pool(),), **(fields | changes))


def kinds(state: FleetState) -> list[tuple[str, str]]:
    return [(problem.kind, problem.level) for problem in find_problems(state)]


def test_a_good_day() -> None:
    for state in (fleet(), fleet(pool(lane(oldest_s=0.4)))):
        assert verdict(state, find_problems(state)).level is Level.OK


def test_an_empty_fleet_is_not_a_problem_until_a_job_waits() -> None:
    empty = fleet(pool(workers_ready=0, slots=0, wait_reason="no worker runs"), workers=[])
    assert kinds(empty) == []
    loads = fleet(
        pool(workers_ready=0, workers_starting=1),
        workers=[worker("w-1", state=WorkerState.STARTING, phase_s=20)],
    )
    assert kinds(loads) == []
    waits = pool(lane(oldest_s=7), workers_ready=0, wait_reason="no worker runs")
    (problem,) = find_problems(fleet(waits, workers=[]))
    assert (problem.kind, problem.pool, problem.since) == ("no_worker", "qwen", NOW - 7)


@pytest.mark.parametrize(
    ("lanes", "changes", "expected"),
    [
        ([lane()], {"paused": True}, [("pool_paused", "warning")]),
        ([], {"intake_stopped": True}, [("intake_stopped", "warning")]),
        ([lane(oldest_s=29)], {}, []),
        ([lane(oldest_s=40)], {}, [("long_wait", "warning")]),
        ([lane(oldest_s=60)], {}, [("long_wait", "problem")]),
        ([lane("flex", oldest_s=400)], {}, []),
        ([lane(waiting=799)], {}, []),
        ([lane(waiting=800)], {}, [("queue_full", "warning")]),
        ([lane(waiting=800), lane("flex", 1000)], {}, [("queue_full", "problem")]),
        ([lane()], {"workers_ready": 0}, [("no_worker", "problem")]),
        (
            [lane()],
            {"workers_ready": 0, "wait_reason": "no worker is ready; one is being started"},
            [("no_worker", "warning")],
        ),
        ([], {"scale": SCALE | {"silent": True}}, [("autoscaler_silent", "warning")]),
        ([], {"scale": SCALE}, []),
    ],
)
def test_problems_of_a_pool(
    lanes: list[LaneOverview], changes: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert kinds(fleet(pool(*lanes, **changes))) == expected


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (lost("w-3", 42, held=61), [("worker_lost", "problem")]),
        (worker("w-3", heartbeat_age_s=7), [("worker_silent", "problem")]),
        (worker("w-3", state="starting", heartbeat_age_s=None, phase_s=30), []),
        (
            worker("w-3", state="starting", heartbeat_age_s=None, phase_s=3000),
            [("worker_loads_long", "warning")],
        ),
    ],
)
def test_problems_of_a_worker(changed: WorkerOverview, expected: list[tuple[str, str]]) -> None:
    assert kinds(fleet(workers=[worker("w-1"), changed])) == expected


def test_a_lost_worker_is_named_with_its_effect() -> None:
    state = fleet(pool(lane()), workers=[worker("w-1"), lost("w-3", 42, held=61)])
    (problem,) = find_problems(state)
    assert (problem.worker, problem.since) == ("w-3", NOW - 42)
    assert "61" in problem.sentence
    assert problem.do


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"redis": RedisOverview(error="timed out", error_since=NOW - 3)},
            [("redis_unavailable", "problem")],
        ),
        ({"redis": RedisOverview(fullest=0.69)}, []),
        ({"redis": RedisOverview(fullest=0.75)}, [("redis_memory", "warning")]),
        ({"redis": RedisOverview(fullest=0.8)}, [("redis_memory", "problem")]),
        ({"redis": RedisOverview(evicts="it evicts")}, [("redis_evicts", "problem")]),
        (
            {"gateway_problems": {"gateway_tasks": "the task relay has ended"}},
            [("gateway_tasks", "problem")],
        ),
        ({"gateway_problems": {"gateway_fleet": "10 s old"}}, [("gateway_fleet", "problem")]),
        ({"gateway_problems": {"redis_full": "Redis uses 91 %"}}, [("redis_full", "problem")]),
        (
            {
                "gateway_problems": {"gateway_fleet": "10 s old"},
                "redis": RedisOverview(error="gone"),
            },
            [("redis_unavailable", "problem")],
        ),
    ],
)
def test_other_problems(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert kinds(fleet(**changes)) == expected


def test_the_worst_problem_comes_first() -> None:
    state = fleet(pool(paused=True), redis=RedisOverview(error="gone"))
    problems = find_problems(state)
    assert problems[0].kind == "redis_unavailable"
    found = verdict(state, problems)
    assert found.level is Level.PROBLEM
    assert "more problem" not in found.sentence


def test_an_action_is_a_request() -> None:
    (problem,) = find_problems(fleet(pool(paused=True)))
    assert problem.model_dump()["action"] == {
        "text": "Resume qwen",
        "method": "POST",
        "path": "/admin/pools/qwen/resume",
        "body": {},
    }


def test_a_problem_keeps_its_beginning_and_is_shown_when_it_has_ended() -> None:
    log = ProblemLog()
    paused = Problem(kind="pool_paused", level=Level.WARNING, sentence="It is paused.", pool="p")
    (first,) = log.update([paused], 100)
    (again,) = log.update([paused], 160)
    assert first.since == again.since == 100
    assert log.update([], 280) == []
    (ended,) = log.recovered
    assert (ended.since, ended.ended) == (100, 280)
    assert "It is paused." in ended.sentence
    log.update([], 280 + 4000)
    assert log.recovered == []


def test_the_verdict_is_since_its_worst_problem_began() -> None:
    problems = [
        Problem(kind=kind, level=level, sentence=f"{kind}.", since=since)
        for kind, level, since in (
            ("A", Level.PROBLEM, 50.0),
            ("B", Level.PROBLEM, 40.0),
            ("C", Level.WARNING, 10.0),
        )
    ]
    found = verdict(fleet(), problems)
    assert (found.level, found.since) == ("problem", 40.0)
    assert found.sentence == "A. And 1 more problem."
