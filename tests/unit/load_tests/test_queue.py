"""The queue's figures: jobs that fit into memory, growth with depth, and the verdict."""

from __future__ import annotations

import pytest

from load_tests.bench.targets import Verdict
from load_tests.job_queue.claim_latency import ClaimLatency, summarize
from load_tests.job_queue.command import (
    CLAIM_TARGETS_MS,
    MAX_GROWTH,
    cost_table,
    evaluate,
    growth,
    latency_table,
    verdict_of,
)
from load_tests.job_queue.costs import JOBS_PER_CALL, OPERATIONS, OperationCost, affordable

GB = 1e9


def cost(
    operation: str, depth: int, round_index: int, us: float, jobs_per_call: int = 1
) -> OperationCost:
    """`us` microseconds of CPU, half of it Redis'."""
    return OperationCost(
        operation=operation,
        jobs_per_call=jobs_per_call,
        depth=depth,
        round=round_index,
        jobs=1000,
        wall_s=0.1,
        client_s=us / 2e3,
        redis_s=us / 2e3,
    )


def costs(factor: float) -> list[OperationCost]:
    """Two rounds; the machine is half as fast in the second; claims grow by `factor`."""
    return [
        cost(
            operation,
            depth,
            round_index,
            40.0 * (round_index + 1) * (factor if depth and operation == "claim" else 1.0),
            jobs_per_call,
        )
        for operation in OPERATIONS
        for jobs_per_call in JOBS_PER_CALL
        for depth in (0, 1000)
        for round_index in range(2)
    ]


@pytest.mark.parametrize(
    ("depth", "bytes_per_job", "free", "expected"),
    [
        (1_000_000, 1000, 10 * GB, 1_000_000),
        (1_000_000, 1000, 1 * GB, 600_000),
        (1_000_000, 1000, 0, 10_000),  # the first jobs are already submitted
        (500, 1000, 0, 500),
    ],
)
def test_the_number_of_jobs_is_limited_by_memory(
    depth: int, bytes_per_job: float, free: float, expected: int
) -> None:
    assert affordable(depth, bytes_per_job, free) == expected


def test_a_cost_is_per_job() -> None:
    one = cost("submit", 0, 0, us=40)
    assert (one.client_us, one.redis_us, one.total_us) == pytest.approx((20, 20, 40))
    assert one.per_s == pytest.approx(10_000)


def test_growth_is_paired_by_round() -> None:
    found = growth(costs(1.5), "claim", 1)
    assert found is not None
    assert (found.low, found.median, found.high) == pytest.approx((1.5, 1.5, 1.5))


@pytest.mark.parametrize(
    ("factor", "good"), [(1.0, True), (MAX_GROWTH - 0.1, True), (MAX_GROWTH + 1, False)]
)
def test_the_verdict_names_growing_operations(factor: float, good: bool) -> None:
    is_good, line = evaluate(costs(factor), [ClaimLatency(0, 0.4, 1.0, 0.6, 100, 0.1)])
    assert is_good == good
    assert line == "QUEUE flat" if good else "claim, 64 a call" in line


def test_a_slow_claim_fails_the_verdict() -> None:
    is_good, line = evaluate(costs(1.0), [ClaimLatency(10, 0.4, 80.0, 0.6, 100, 0.1)])
    assert not is_good
    assert "p99 80.00" in line


@pytest.mark.parametrize(
    ("p50", "p99", "verdict"),
    [
        (0.4, 1.9, Verdict.GOAL),
        (0.4, 2.1, Verdict.MET),
        (0.9, 1.0, Verdict.MET),
        (1.1, 1.2, Verdict.MISSED),
        (0.1, 5.1, Verdict.MISSED),
    ],
)
def test_the_verdict_on_claims_is_the_worse_of_both_percentiles(
    p50: float, p99: float, verdict: Verdict
) -> None:
    assert CLAIM_TARGETS_MS == {"p50": (1.0, 0.5), "p99": (5.0, 2.0)}
    assert verdict_of(ClaimLatency(0, p50, p99, 0.6, 100, 0.1)) is verdict


def test_a_latency_is_in_milliseconds() -> None:
    times = [(n / 1e3, (n + 1) / 1e3) for n in range(1, 101)]
    found = summarize(10, times, [0.0002, 0.0003, 0.0004])
    assert found.p50_ms == pytest.approx(50.5)
    assert found.p99_ms == pytest.approx(99.01)
    assert found.end_p50_ms == pytest.approx(51.5)
    assert found.ping_p50_ms == pytest.approx(0.3)
    assert found.samples == 100


def test_tables_have_a_row_per_operation_and_latency() -> None:
    shown = cost_table(costs(1.5)).text()
    assert "1.50 (1.50..1.50)" in shown
    assert len(cost_table(costs(1.0)).rows) == len(OPERATIONS) * len(JOBS_PER_CALL)
    assert "missed" in latency_table([ClaimLatency(10_000, 2.0, 3.0, 0.6, 100, 0.1)]).text()
