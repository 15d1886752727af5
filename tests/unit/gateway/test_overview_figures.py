"""Rates, percentiles and history of the overview."""

from __future__ import annotations

import pytest

from gateway.ops.overview.history import History
from gateway.ops.overview.percentiles import HistogramWindow, quantile
from gateway.ops.overview.rates import JobRates, WorkerRates, job_counters
from shared.store.redis.throughput import Throughput
from tests.unit.gateway.test_worker_losses import heartbeat


def test_a_quantile_lies_within_its_bucket() -> None:
    bounds = (1.0, 2.0, 4.0)
    assert quantile(bounds, (0, 10, 0, 0), 0.5) == 1.5
    assert quantile(bounds, (10, 0, 0, 0), 1.0) == 1.0
    assert quantile(bounds, (5, 0, 5, 0), 0.75) == 3.0
    assert quantile(bounds, (0, 0, 0, 3), 0.5) == 4.0, "beyond the last limit"


def test_a_window_forgets_what_is_older() -> None:
    window = HistogramWindow((1.0, 2.0), window_s=10, step_s=1)
    assert window.quantiles() is None
    window.add(0, (8, 0, 0))
    assert window.quantiles() == {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    assert window.since_s is None
    window.add(9, (8, 4, 0))
    window.add(11, (8, 8, 0))
    assert window.since_s == 0
    found = window.quantiles()
    assert found is not None
    assert found["p50"] == 1.5
    window.add(40, (8, 8, 0))
    assert window.quantiles() is None


def test_job_rates_are_differences_of_counters() -> None:
    rates = JobRates()
    assert rates.increases() == {}  # as long as Redis was never read
    rates.add(0, job_counters(Throughput(100, {"failed": 1}), unfinished=10))
    assert set(rates.per_s().values()) == {None}
    rates.add(5, job_counters(Throughput(150, {"failed": 2, "expired": 5}), unfinished=20))
    assert rates.per_s() == {"submitted": 10, "completed": 6.8, "failed": 0.2, "cancelled": 1.0}
    assert rates.increases() == {"submitted": 50, "completed": 34, "failed": 1, "cancelled": 5}


def test_a_workers_rate_is_by_its_own_clock() -> None:
    rates = WorkerRates(buckets=2)
    rates.update([heartbeat("a", clock_s=10, output_tokens=100, waits=(1, 0)).worker])
    assert not rates.output
    rates.update([heartbeat("a", clock_s=10, output_tokens=100, waits=(1, 0)).worker])
    rates.update([heartbeat("a", clock_s=12, output_tokens=300, waits=(1, 2)).worker])
    assert rates.output == {"a": 100}
    assert list(rates.waits) == [1, 2]
    restarted = heartbeat("a", clock_s=1, output_tokens=5, waits=(0, 1)).worker
    rates.update([restarted])
    assert list(rates.waits) == [1, 3]
    rates.update([])
    assert not rates.output


def test_history_has_a_point_every_five_seconds_and_gaps() -> None:
    history = History(("waiting",))
    assert history.to_object() == {"step_s": 5, "from": None, "waiting": []}
    for at_s, waiting in ((100.0, 1), (101.0, 9), (105.5, 2), (121.0, 3)):
        history.add(at_s, {"waiting": waiting})
    assert history.to_object() == {
        "step_s": 5,
        "from": 100,
        "waiting": [1, 2, None, None, 3],
    }


@pytest.mark.parametrize("seconds", [900, 5000])
def test_history_is_bounded(seconds: int) -> None:
    history = History(("waiting",))
    for at_s in range(0, seconds, 5):
        history.add(float(at_s), {"waiting": at_s})
    found = history.to_object()["waiting"]
    assert len(found) == 180
    assert found[-1] == seconds - 5
