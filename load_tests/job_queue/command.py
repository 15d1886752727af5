"""`queue`: what the queue's operations cost at growing depth, and how soon an idle worker claims.

Exit status 0: the cost does not grow with depth, and claims are fast enough. 1: otherwise.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import median

import uvloop

from load_tests.bench.targets import Verdict
from load_tests.harness.session import (
    OUTPUT,
    add_options,
    print_progress,
    print_tables,
    save_result,
    session,
)
from load_tests.harness.spread import Spread, show_spread, spread
from load_tests.harness.table import Table
from load_tests.job_queue.claim_latency import ClaimLatency, measure_latencies
from load_tests.job_queue.costs import (
    JOBS_PER_CALL,
    OPERATIONS,
    FilledQueue,
    OperationCost,
    fill,
    measure_round,
    open_queue,
)
from tests.harness.fleet import Stack
from tests.harness.servers import RedisServer

HELP = "cost of the queue's operations at growing depth, and claim latency"
MAX_GROWTH = 2.0
"""Limit of an operation's cost at the deepest queue / its cost at the shallowest."""
CLAIM_TARGETS_MS = {"p50": (1.0, 0.5), "p99": (5.0, 2.0)}
"""Limit and goal."""
_DEPTHS = "0,10000,100000,1000000"
_ELSEWHERE = (0, 10_000)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    options = {
        "--depths": (_DEPTHS, "waiting jobs"),
        "--rounds": (5, "rounds over all depths"),
        "--samples": (400, "claims to time"),
    }
    add_options(parser, {**options, **OUTPUT})


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    depths = sorted({int(depth) for depth in arguments.depths.split(",")})
    with session() as processes:
        queues, costs, latencies = uvloop.run(
            _measure(processes, depths, arguments.rounds, arguments.samples)
        )
    print_tables([cost_table(costs), latency_table(latencies)], arguments)
    for depth, size in queues.items():
        print(f"\n{depth} waiting jobs take {size:.0f} bytes of Redis memory each", end="")
    print()
    save_result(
        arguments.json,
        "queue",
        {
            "bytes_per_waiting_job": queues,
            "costs": [asdict(cost) for cost in costs],
            "claim_latency": [asdict(latency) for latency in latencies],
        },
    )
    good, verdict = evaluate(costs, latencies)
    print(verdict)
    return 0 if good else 1


async def _measure(
    processes: Stack, depths: Sequence[int], rounds: int, samples: int
) -> tuple[dict[int, float], list[OperationCost], list[ClaimLatency]]:
    """Return bytes per waiting job by depth, costs, latencies."""
    async with AsyncExitStack() as stack:
        queues: list[FilledQueue] = []
        server = _redis(processes)
        print_progress("claim latency")
        latencies = await measure_latencies(processes, server, _ELSEWHERE, samples)
        processes.close()
        for depth in depths:
            server = _redis(processes)
            queue = await stack.enter_async_context(open_queue(server))
            queues.append(await fill(server, queue, depth))
            print_progress(
                f"{queues[-1].depth} jobs wait, {queues[-1].bytes_per_job:.0f} bytes each"
            )
        costs = []
        for round_index in range(rounds):
            for filled in queues if round_index % 2 == 0 else reversed(queues):
                for jobs_per_call in JOBS_PER_CALL:
                    costs += await measure_round(filled, jobs_per_call, round_index)
            print_progress(f"round {round_index + 1} of {rounds}")
        return {q.depth: q.bytes_per_job for q in queues if q.depth}, costs, latencies


def _redis(processes: Stack) -> RedisServer:
    server = RedisServer(Path(tempfile.mkdtemp(prefix="redis-", dir=processes.folder)))
    processes.afterwards.callback(server.kill)
    server.start()
    return server


def growth(costs: Sequence[OperationCost], operation: str, jobs_per_call: int) -> Spread | None:
    """Return CPU per job at the deepest queue / at the shallowest, paired by round."""
    chosen = [c for c in costs if (c.operation, c.jobs_per_call) == (operation, jobs_per_call)]
    shallow, deep = (pick(c.depth for c in chosen) for pick in (min, max))
    by_round_and_depth = {(c.round, c.depth): c.total_us for c in chosen}
    rounds = sorted({c.round for c in chosen})
    return spread(by_round_and_depth[n, deep] / by_round_and_depth[n, shallow] for n in rounds)


def cost_table(costs: Sequence[OperationCost]) -> Table:
    """Return a table with a row per operation and batch size, columns by depth."""
    kinds = list(product(OPERATIONS, JOBS_PER_CALL))
    columns = {"operation": [f"{operation}, {n} a call" for operation, n in kinds]}
    for depth in sorted({cost.depth for cost in costs}):
        chosen = [
            [c for c in costs if (c.operation, c.jobs_per_call, c.depth) == (*kind, depth)]
            for kind in kinds
        ]
        medians = [
            [median(getattr(c, name) for c in each) for name in ("per_s", "client_us", "redis_us")]
            for each in chosen
        ]
        columns[f"{depth} wait\n/s"] = [f"{per_s:.0f}" for per_s, _, _ in medians]
        columns[f"CPU us each\nclient+Redis{' ' * len(columns)}"] = [
            f"{client:.0f}+{redis:.0f}" for _, client, redis in medians
        ]
    columns["CPU, deepest\n/ shallowest"] = [show_spread(growth(costs, *kind)) for kind in kinds]
    title = "Queue, Redis with appendonly everysec: medians over rounds, ratios within a round"
    return Table.of_columns(title, columns)


def latency_table(latencies: Sequence[ClaimLatency]) -> Table:
    """Return a table of p50 and p99 and their verdict."""
    (p50_limit, p50_goal), (p99_limit, p99_goal) = CLAIM_TARGETS_MS.values()
    columns = {
        "waiting": [f"{each.waiting_elsewhere} jobs in another pool" for each in latencies],
        "p50 ms": [f"{each.p50_ms:.2f}" for each in latencies],
        "p99 ms": [f"{each.p99_ms:.2f}" for each in latencies],
        "ended p50 ms": [f"{each.end_p50_ms:.2f}" for each in latencies],
        "PING p50 ms": [f"{each.ping_p50_ms:.2f}" for each in latencies],
        "samples": [str(each.samples) for each in latencies],
        "verdict": [verdict_of(each).value for each in latencies],
    }
    title = (
        f"Submit to claim by an idle worker: limit of p50 {p50_limit:g} ms (goal {p50_goal:g}), "
        f"of p99 {p99_limit:g} ms (goal {p99_goal:g})"
    )
    return Table.of_columns(title, columns)


def verdict_of(latency: ClaimLatency) -> Verdict:
    """Return the worse of the verdicts on p50 and p99."""
    found = [
        Verdict.of(value, *CLAIM_TARGETS_MS[name])
        for name, value in (("p50", latency.p50_ms), ("p99", latency.p99_ms))
    ]
    return next(each for each in (Verdict.MISSED, Verdict.MET, Verdict.GOAL) if each in found)


def evaluate(costs: Sequence[OperationCost], latencies: Sequence[ClaimLatency]) -> tuple[bool, str]:
    """Return whether all limits are met, and the verdict in one line."""
    problems = []
    for operation, n in product(OPERATIONS, JOBS_PER_CALL):
        grown = growth(costs, operation, n)
        if grown is not None and grown.median > MAX_GROWTH:
            cost = f"costs {grown.median:.2f} x as much at the deepest queue"
            problems.append(f"{operation}, {n} a call {cost}")
    problems += [
        f"claims take {latency.p50_ms:.2f} ms (p99 {latency.p99_ms:.2f})"
        for latency in latencies
        if verdict_of(latency) is Verdict.MISSED
    ]
    return not problems, f"QUEUE grows: {'; '.join(problems)}" if problems else "QUEUE flat"
