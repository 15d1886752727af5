"""Which workers count as lost."""

from __future__ import annotations

from typing import Any

import pytest

from shared.fleet.registry import EXPIRY_S, Heartbeat, WorkerInfo
from shared.fleet.worker_losses import KEPT_S, WorkerLosses
from shared.job.states import WorkerState


def heartbeat(worker_id: str, age_s: float = 0.5, **changes: Any) -> Heartbeat:
    fields: dict[str, Any] = {
        "id": worker_id,
        "pool": "p",
        "state": WorkerState.READY,
        "engine": "simulated",
        "models": ("m",),
        "slots": 4,
        "running": 2,
        "jobs": 2,
        "kv_usage": 0.1,
        "host": "h",
        "pid": 1,
        "version": "0",
    }
    return Heartbeat(WorkerInfo(**(fields | changes)), age_s)


def test_a_worker_that_leaves_in_order_is_not_lost() -> None:
    losses = WorkerLosses()
    losses.update([heartbeat("a"), heartbeat("b")], 100)
    losses.gone("b", 101)
    losses.update([heartbeat("a")], 102)
    assert not losses.lost


def test_a_killed_worker_is_lost_before_its_entry_expires_and_after() -> None:
    losses = WorkerLosses()
    losses.update([heartbeat("a"), heartbeat("b")], 100)
    losses.gone("b", 100.5)
    losses.update([heartbeat("a"), heartbeat("b", 1.5)], 101)
    assert losses.lost["b"].since_s == 100.5
    losses.update([heartbeat("a")], 112)
    assert set(losses.lost) == {"b"}
    losses.update([heartbeat("a")], 101 + KEPT_S)
    assert not losses.lost


@pytest.mark.parametrize("state", [WorkerState.READY, WorkerState.DRAINING])
def test_a_worker_that_has_failed_is_lost_until_it_runs_again(state: WorkerState) -> None:
    losses = WorkerLosses()
    losses.update([heartbeat("a"), heartbeat("b")], 100)
    failed = heartbeat("b", state=state, failure="its engine died")
    losses.update([heartbeat("a"), failed], 101)
    assert losses.lost["b"].worker.failure == "its engine died"
    assert "b" in losses.ended
    losses.update([heartbeat("a")], 112)
    assert set(losses.lost) == {"b"}
    losses.update([heartbeat("a"), heartbeat("b")], 113)
    assert not losses.lost
    assert not losses.ended


def test_the_reason_stays_where_the_lost_connection_is_found_before_the_failure() -> None:
    losses = WorkerLosses()
    losses.update([heartbeat("b")], 100)
    losses.gone("b", 100.1)
    losses.update([heartbeat("b", 1)], 100.5)
    losses.update([heartbeat("b", 0.3, failure="its engine died")], 101)
    losses.update([], 112)
    lost = losses.lost["b"]
    assert (lost.worker.failure, lost.since_s) == ("its engine died", 100.1)


def test_a_failure_before_the_first_look_is_seen() -> None:
    losses = WorkerLosses()
    losses.update([heartbeat("b", 3, failure="its engine died")], 100)
    assert losses.lost["b"].since_s == 97


def test_a_worker_without_the_detector_is_lost_when_its_entry_has_expired() -> None:
    losses = WorkerLosses()
    losses.update([heartbeat("a"), heartbeat("b", 1.0)], 100)
    losses.update([heartbeat("a"), heartbeat("b", EXPIRY_S - 0.2)], 108.8)
    losses.update([heartbeat("a")], 110)
    assert losses.lost["b"].since_s == 99


def test_a_worker_that_reconnects_is_not_lost_any_more() -> None:
    losses = WorkerLosses()
    losses.update([heartbeat("a", 1.0)], 100)
    losses.gone("a", 100.2)
    losses.update([heartbeat("a", 1.5)], 100.5)
    assert losses.lost
    losses.update([heartbeat("a", 0.3)], 102)
    assert not losses.lost
    losses.update([heartbeat("a", 4.0)], 106)
    assert not losses.lost


def test_a_loss_ends_when_the_pool_has_as_many_workers_again() -> None:
    losses = WorkerLosses()
    losses.update([heartbeat("a"), heartbeat("b")], 100)
    losses.gone("b", 100.5)
    losses.update([heartbeat("a"), heartbeat("b", 1.5)], 101)
    assert losses.lost
    losses.update([heartbeat("a"), heartbeat("c", state=WorkerState.STARTING)], 112)
    assert losses.lost
    losses.update([heartbeat("a"), heartbeat("c")], 114)
    assert not losses.lost


def test_a_worker_that_was_replaced_at_once_does_not_come_back_while_its_entry_expires() -> None:
    losses = WorkerLosses()
    losses.update([heartbeat("a"), heartbeat("b")], 100)
    losses.gone("b", 100.5)
    losses.update([heartbeat("a"), heartbeat("b", 1.5), heartbeat("c")], 102)
    assert set(losses.lost) == {"b"}, "it is shown for some seconds"
    losses.update([heartbeat("a"), heartbeat("b", 6.5), heartbeat("c")], 106.5)
    losses.update([heartbeat("a"), heartbeat("b", 7.5), heartbeat("c")], 107.5)
    assert not losses.lost
    assert losses.ended == {"b"}
    losses.update([heartbeat("a"), heartbeat("c")], 112)
    assert not losses.lost
    assert not losses.ended


def test_the_same_worker_is_back() -> None:
    losses = WorkerLosses()
    losses.update([heartbeat("a")], 100)
    losses.gone("a", 100.5)
    losses.update([heartbeat("a", 3.5)], 103)
    assert losses.lost
    losses.update([heartbeat("a", 0.2, state=WorkerState.STARTING)], 106)
    assert not losses.lost
