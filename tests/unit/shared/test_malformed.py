"""Malformed values are counted each time and logged once."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter

from shared.platform.malformed import MalformedValues


def test_a_value_is_counted_each_time_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    values = MalformedValues(Counter("bad", "values", ["kind"], registry=registry))
    for _ in range(3):
        values.skip("worker", "'w-1'", ValueError("no state"))
    values.skip("worker", "'w-2'", ValueError("no state"))
    assert registry.get_sample_value("bad_total", {"kind": "worker"}) == 4
    assert [record.getMessage() for record in caplog.records] == [
        "skipped a malformed worker, 'w-1': ValueError('no state')",
        "skipped a malformed worker, 'w-2': ValueError('no state')",
    ]
