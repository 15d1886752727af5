"""Rates of the overview."""

from __future__ import annotations

from gateway.ops.overview.rates import WorkerRates
from tests.unit.gateway.test_worker_losses import heartbeat


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
