"""The ScaledObjects beside KEDA's own read what the product writes: a stream, and metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from shared.fleet.pool import pool_name
from shared.job.lanes import DEFAULT
from shared.job.states import JobState
from shared.platform.metrics.gateway import GatewayMetrics
from shared.store.redis import keys
from tests.deploy.kubernetes.test_autoscaling import autoscaled, triggers
from tests.deploy.queries import Exports


def test_by_lag_reads_the_stream_that_jobs_wait_in() -> None:
    name = "cpu, by lag, monitoring"
    stream = keys.queue(0, pool_name(autoscaled(name)[0]), DEFAULT)
    for trigger in triggers(name):
        assert trigger["metadata"]["stream"] == stream
        assert trigger["metadata"]["consumerGroup"] == keys.GROUP
    # What runs counts too, else busy workers go once nothing waits.
    assert ["lagCount" in t["metadata"] for t in triggers(name)] == [True, False]
    assert "pendingEntriesCount" in triggers(name)[1]["metadata"]


def test_by_wait_asks_for_what_gateways_export() -> None:
    name = "gpu, by wait, monitoring"
    pool = pool_name(autoscaled(name)[0])
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)
    metrics.oldest.labels(pool, DEFAULT).set(1)
    for state in JobState:
        metrics.jobs.labels(pool, state).set(1)
    exports = Exports(generate_latest(registry).decode())
    queries = [trigger["metadata"]["query"] for trigger in triggers(name)]
    assert [exports.problems(query) for query in queries] == [[], []]
    assert exports.problems(queries[0].replace("age", "aged")) != []
    # What runs counts too, else busy workers go once nothing waits.
    assert 'state="in_progress"' in queries[1]
