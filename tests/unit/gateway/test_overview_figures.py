"""Rates of the overview."""

from __future__ import annotations

from gateway.ops.overview.rates import JobRates, WorkerRates, job_counters
from shared.store.redis.throughput import Throughput
from tests.unit.gateway.test_worker_losses import heartbeat


def test_job_rates_are_differences_of_counters() -> None:
    rates = JobRates()
    assert rates.increases() == {}  # as long as Redis was never read
    rates.add(0, job_counters(Throughput(100, {"failed": 1}), unfinished=10))
    assert set(rates.per_s().values()) == {None}
    rates.add(5, job_counters(Throughput(150, {"failed": 2, "expired": 5}), unfinished=20))
    assert rates.per_s() == {"submitted": 10, "completed": 6.8, "failed": 0.2, "cancelled": 1.0}
    assert rates.increases() == {"submitted": 50, "completed": 34, "failed": 1, "cancelled": 5}


def test_a_workers_rate_is_by_its_own_clock() -> None:
    rates = WorkerRates()
    rates.update([heartbeat("a", clock_s=10, output_tokens=100).worker])
    assert not rates.output
    rates.update([heartbeat("a", clock_s=10, output_tokens=100).worker])
    rates.update([heartbeat("a", clock_s=12, output_tokens=300).worker])
    assert rates.output == {"a": 100}
    restarted = heartbeat("a", clock_s=1, output_tokens=5).worker
    rates.update([restarted])
    rates.update([])
    assert not rates.output
