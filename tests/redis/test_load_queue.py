"""The benchmark of the queue, at a small size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from load_tests.harness.http import free_port
from load_tests.harness.processes import Processes
from load_tests.harness.redis_server import RedisServer
from load_tests.job_queue import costs as queue_costs
from load_tests.job_queue.claim_latency import measure_latencies
from load_tests.job_queue.costs import OPERATIONS, fill, measure_round, open_queue
from shared.store.redis.depths import depths


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Child processes that end with the test."""
    processes = Processes(tmp_path)
    yield processes
    processes.close()


@pytest.mark.parametrize("jobs_per_call", [1, 8])
async def test_every_operation_is_measured_and_the_depth_stays(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs_per_call: int
) -> None:
    monkeypatch.setattr(queue_costs, "_BATCH", 64)
    monkeypatch.setattr(queue_costs, "_BATCHES", 2)
    server = RedisServer(processes, free_port(), tmp_path / "redis")
    async with open_queue(server) as queue:
        filled = await fill(server, queue, 20)
        costs = await measure_round(filled, jobs_per_call, 3)
        (depth, *_) = [lane.waiting for lane in await depths(queue) if lane.waiting]
    assert [(cost.operation, cost.jobs, cost.depth, cost.round) for cost in costs] == [
        (operation, 128, 20, 3) for operation in OPERATIONS
    ]
    assert depth == 20
    assert all(cost.wall_s > 0 and cost.client_s > 0 and cost.redis_s > 0 for cost in costs)


async def test_a_claim_is_timed_before_the_end(processes: Processes, tmp_path: Path) -> None:
    server = RedisServer(processes, free_port(), tmp_path / "redis")
    latencies = await measure_latencies(processes, server, (0, 5), 3)
    assert [(each.waiting_elsewhere, each.samples) for each in latencies] == [(0, 3), (5, 3)]
    for each in latencies:
        assert 0 < each.p50_ms < each.end_p50_ms
