"""The verdict about the fleet: its problems, since when, and the sentence."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gateway.ops.overview.fleet_state import (
    FleetState,
    LaneState,
    PoolState,
    RedisState,
    WorkerView,
)
from gateway.ops.overview.problem import Problem
from gateway.ops.overview.problems import find_problems
from gateway.ops.overview.verdict import ProblemLog, level, sentence, verdict_object
from shared.job.states import WorkerState
from tests.test_architecture import ROOT
from tests.unit.gateway.test_worker_losses import heartbeat

NOW = 1_000_000.0


def worker(worker_id: str, **changes: Any) -> WorkerView:
    age_s = changes.pop("age_s", 0.5)
    lost_since_s = changes.pop("lost_since_s", None)
    return WorkerView(heartbeat(worker_id, pool="qwen", **changes).worker, age_s, lost_since_s)


def pool(**changes: Any) -> PoolState:
    fields: dict[str, Any] = {
        "pool": "qwen",
        "slots": 8,
        "busy": 4,
        "running": 4,
        "workers_ready": 2,
        "max_depth": 1000,
    }
    return PoolState(**(fields | changes))


def lane(name: str = "default", waiting: int = 9, oldest_s: float = 1.0) -> LaneState:
    return LaneState(name, waiting, oldest_s)


def fleet(*pools: PoolState, **changes: Any) -> FleetState:
    fields: dict[str, Any] = {"workers": [worker("w-1"), worker("w-2")]}
    return FleetState(NOW, pools or (pool(),), **(fields | changes))


def kinds(state: FleetState) -> list[tuple[str, str]]:
    return [(problem.kind, problem.level) for problem in find_problems(state)]


def verdict_of(state: FleetState) -> str:
    return sentence(state, find_problems(state))


def test_a_good_day() -> None:
    assert verdict_of(fleet()) == "Healthy. 2 workers, 4 of 8 slots busy, nothing waits."
    busy = fleet(pool(lanes=[lane(oldest_s=0.4)]))
    assert verdict_of(busy) == "Healthy. 2 workers, 4 of 8 slots busy, oldest wait 400 ms."
    assert level(find_problems(busy)) == "ok"


def test_an_empty_fleet_is_not_a_problem_until_a_job_waits() -> None:
    empty = fleet(pool(workers_ready=0, slots=0, wait_reason="no worker runs"), workers=[])
    assert kinds(empty) == []
    assert "No worker runs" in verdict_of(empty)
    loads = fleet(
        pool(workers_ready=0, workers_starting=1),
        workers=[worker("w-1", state=WorkerState.STARTING, age_s=20)],
    )
    assert verdict_of(loads) == "No worker is ready yet: 1 worker starting. No job waits."
    waits = pool(workers_ready=0, wait_reason="no worker runs", lanes=[lane(oldest_s=7)])
    assert verdict_of(fleet(waits, workers=[])) == (
        "In the pool qwen no worker runs; 9 jobs wait, the oldest for 7.0 s."
    )
    assert find_problems(fleet(waits, workers=[]))[0].since == NOW - 7


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"paused": True, "lanes": [lane()]}, [("pool_paused", "warning")]),
        ({"intake_stopped": True}, [("intake_stopped", "warning")]),
        ({"lanes": [lane(oldest_s=40)]}, [("long_wait", "problem")]),
        ({"lanes": [lane("flex", oldest_s=400)]}, []),
        ({"lanes": [lane(waiting=950)]}, [("queue_full", "warning")]),
        ({"lanes": [lane(waiting=1000)]}, [("queue_full", "problem")]),
        ({"lanes": [lane("suspect", waiting=1)]}, [("suspects", "warning")]),
        (
            {
                "workers_ready": 0,
                "wait_reason": "no worker is ready; one is being started",
                "lanes": [lane()],
            },
            [("no_worker", "warning")],
        ),
    ],
)
def test_problems_of_a_pool(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert kinds(fleet(pool(**changes))) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"lost_since_s": NOW - 42, "jobs": 61}, [("worker_lost", "problem")]),
        ({"age_s": 7}, [("worker_silent", "problem")]),
        ({"state": WorkerState.STARTING, "age_s": 30}, []),
        ({"state": WorkerState.STARTING, "age_s": 3000}, [("worker_loads_long", "warning")]),
    ],
)
def test_problems_of_a_worker(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert kinds(fleet(workers=[worker("w-1"), worker("w-3", **changes)])) == expected


def test_a_lost_worker_is_named_with_its_effect() -> None:
    lost = worker("w-3", lost_since_s=NOW - 42, jobs=61)
    state = fleet(pool(lanes=[lane()]), workers=[worker("w-1"), lost])
    assert verdict_of(state) == (
        "The worker w-3 was lost 42.0 s ago. Its jobs, 61 at its last heartbeat, went back to the "
        "queue; 9 wait now. Start it again, or let its supervisor do it."
    )
    (problem,) = find_problems(state)
    assert (problem.worker, problem.since) == ("w-3", NOW - 42)


def test_the_failure_of_a_worker_is_named() -> None:
    failed = worker("w-3", lost_since_s=NOW - 2, jobs=0, failure="its engine died")
    state = fleet(pool(lanes=[lane(waiting=1)]), workers=[worker("w-1"), failed])
    assert verdict_of(state) == (
        "The worker w-3 failed 2.0 s ago: its engine died. Its jobs went back to the queue; "
        "1 waits now. Start it again, or let its supervisor do it."
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"redis": RedisState(error="timed out", since_s=NOW - 3)}, ["redis_unavailable"]),
        ({"redis": RedisState(fullest=0.9)}, ["redis_memory"]),
        ({"redis": RedisState(eviction_problem="it evicts")}, ["redis_evicts"]),
        (
            {"gateway_problems": {"tasks": "the task relay has ended", "format": ""}},
            ["gateway_tasks"],
        ),
        ({"recent": {"failed": 3, "completed": 10}}, ["jobs_fail"]),
        ({"recent": {"failed": 3, "completed": 1000}}, []),
        ({"recent": {"failed": 2, "completed": 0}}, []),
        ({"dead_letters": 3, "newest_letter_s": NOW - 60}, ["dead_letters"]),
        ({"dead_letters": 3, "newest_letter_s": NOW - 90_000}, []),
    ],
)
def test_other_problems(changes: dict[str, Any], expected: list[str]) -> None:
    assert [kind for kind, _ in kinds(fleet(**changes))] == expected


def test_the_worst_problem_comes_first() -> None:
    state = fleet(
        pool(paused=True), dead_letters=1, newest_letter_s=NOW, redis=RedisState(error="gone")
    )
    problems = find_problems(state)
    assert problems[0].kind == "redis_unavailable"
    assert level(problems) == "problem"
    assert "more problem" not in sentence(state, problems)


def test_an_action_is_a_request() -> None:
    (problem,) = find_problems(fleet(pool(paused=True)))
    assert problem.to_object()["action"] == {
        "text": "Resume qwen",
        "method": "POST",
        "path": "/admin/pools/qwen/resume",
        "body": {},
    }


def test_every_runbook_exists() -> None:
    headings = re.findall(
        r"^## (\w+)$", (ROOT / "compose/observability/runbooks.md").read_text(), re.MULTILINE
    )
    sources = (ROOT / "gateway/ops/overview").glob("*problems.py")
    source = "".join(path.read_text() for path in sources)
    named = set(re.findall(r'"(flotilla[a-z]+)"', source))
    assert len(named) > 8
    assert named <= {heading.lower() for heading in headings}


def test_a_problem_keeps_its_beginning_and_is_shown_when_it_has_ended() -> None:
    log = ProblemLog()
    paused = Problem("pool_paused", "warning", "It is paused.", pool="p")
    (first,) = log.update([paused], 100)
    (again,) = log.update([paused], 160)
    assert first.since == again.since == 100
    assert log.update([], 280) == []
    (ended,) = log.recovered
    assert (ended["since"], ended["ended"]) == (100, 280)
    assert ended["sentence"] == "Ended after 3 min: It is paused."
    log.update([], 280 + 4000)
    assert log.recovered == []


def test_the_verdict_is_since_its_worst_problem_began() -> None:
    problems = [
        Problem("a", "problem", "A.", 50.0),
        Problem("b", "problem", "B.", 40.0),
        Problem("c", "warning", "C.", 10.0),
    ]
    found = verdict_object(fleet(), problems, [])
    assert (found["level"], found["since"]) == ("problem", 40.0)
    assert found["sentence"] == "A. And 1 more problem."
