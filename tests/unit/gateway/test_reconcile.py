"""Which workers are started and drained."""

from __future__ import annotations

import pytest

from gateway.ops.autoscaler.reconcile import Instance, Phase, Plan, instance, reconcile
from shared.job.states import WorkerState
from tests.unit.worker_info import worker

STARTING, SERVING, DRAINING = Phase.STARTING, Phase.SERVING, Phase.DRAINING


@pytest.mark.parametrize(
    ("wanted", "instances", "plan"),
    [
        (0, [], Plan(0, ())),
        (3, [], Plan(3, ())),
        (3, [Instance("a", SERVING, 5), Instance("b", STARTING, 0)], Plan(1, ())),
        (1, [Instance("a", DRAINING, 5)], Plan(1, ())),  # it comes back no more
        (0, [Instance("a", DRAINING, 5)], Plan(0, ())),  # once is enough
        (1, [Instance("a", SERVING, 5), Instance("b", SERVING, 2)], Plan(0, ("b",))),
        (0, [Instance("a", SERVING, 5), Instance("b", SERVING, 2)], Plan(0, ("b", "a"))),
        (1, [Instance("b", SERVING, 2), Instance("a", SERVING, 2)], Plan(0, ("a",))),
        (0, [Instance("a", STARTING, 0)], Plan(0, ())),  # never one that loads
        (0, [Instance("a", STARTING, 0), Instance("b", SERVING, 9)], Plan(0, ("b",))),
        # One that loads can't do yet what the one that serves does.
        (1, [Instance("a", STARTING, 0), Instance("b", SERVING, 9)], Plan(0, ())),
    ],
)
def test_reconcile(wanted: int, instances: list[Instance], plan: Plan) -> None:
    assert reconcile(wanted, instances) == plan


@pytest.mark.parametrize(
    ("state", "draining", "phase"),
    [
        (None, False, STARTING),
        (WorkerState.STARTING, False, STARTING),
        (WorkerState.READY, False, SERVING),
        (WorkerState.BUSY, False, SERVING),
        (WorkerState.DRAINING, False, DRAINING),
        (WorkerState.READY, True, DRAINING),  # it has not announced that yet
        (None, True, DRAINING),  # it has left the registry, and is about to end
    ],
)
def test_the_phase_of_an_instance(state: WorkerState | None, draining: bool, phase: Phase) -> None:
    found = None if state is None else worker(state=state, jobs=3)
    assert instance("a", found, draining=draining) == Instance(
        "a", phase, 0 if found is None else 3
    )
