"""What the queue costs as it grows, and how soon an idle worker has a job.

Exit status 0: operations are flat in depth, and claims are quick enough; 1: one of them is not.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import median

import uvloop

from load_tests.bench.figures import Spread, spread
from load_tests.bench.report import Table
from load_tests.bench.targets import Verdict
from load_tests.harness.processes import Processes, RedisServer
from load_tests.harness.session import default_path, save, say, session
from load_tests.job_queue.claim_latency import Latency, measure_latencies
from load_tests.job_queue.costs import (
    JOBS_PER_CALL,
    OPERATIONS,
    Cost,
    FilledQueue,
    fill,
    measure_round,
    open_queue,
)
from load_tests.systems.system import free_port

HELP = "what the queue's operations cost as it grows, and how soon a job is claimed"
FLAT = 2.0
"""What an operation may cost at the deepest queue, as a ratio to an empty one."""
CLAIM_TARGETS_MS = {"p50": (1.0, 0.5), "p99": (5.0, 2.0)}
"""Must and aim."""
_DEPTHS = "0,10000,100000,1000000"
_ELSEWHERE = (0, 10_000)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--depths", default=_DEPTHS, help=f"waiting jobs (default {_DEPTHS})")
    parser.add_argument("--rounds", type=int, default=5, help="of all depths (default 5)")
    parser.add_argument(
        "--samples", type=int, default=400, help="claims whose latency is taken (default 400)"
    )
    parser.add_argument("--json", type=Path, help="the results (default load_tests/results/...)")
    parser.add_argument("--markdown", action="store_true", help="tables in Markdown")


def main(arguments: argparse.Namespace) -> int:
    depths = sorted({int(depth) for depth in arguments.depths.split(",")})
    path: Path = arguments.json or default_path("queue")
    with session() as processes:
        queues, costs, latencies = uvloop.run(
            _measure(processes, depths, arguments.rounds, arguments.samples)
        )
    shown = [cost_table(costs), latency_table(latencies)]
    for table in shown:
        print(f"\n{table.markdown() if arguments.markdown else table.text()}")
    for depth, size in queues.items():
        print(f"\n{depth} waiting jobs take {size:.0f} bytes of Redis memory each", end="")
    save(
        path,
        {
            "bytes_per_waiting_job": queues,
            "costs": [asdict(cost) for cost in costs],
            "claim_latency": [asdict(latency) for latency in latencies],
        },
    )
    good, verdict = judge(costs, latencies)
    print(f"\n\nresults: {path}\n{verdict}")
    return 0 if good else 1


async def _measure(
    processes: Processes, depths: Sequence[int], rounds: int, samples: int
) -> tuple[dict[int, float], list[Cost], list[Latency]]:
    """Bytes per waiting job by depth, costs, latencies."""
    async with AsyncExitStack() as stack:
        queues: list[FilledQueue] = []
        server = _redis(processes)
        say("claim latency")
        latencies = await measure_latencies(processes, server, _ELSEWHERE, samples)
        processes.close()
        for depth in depths:
            server = _redis(processes)
            queue = await stack.enter_async_context(open_queue(server))
            queues.append(await fill(server, queue, depth))
            say(f"{queues[-1].depth} jobs wait, {queues[-1].bytes_per_job:.0f} bytes each")
        costs = []
        for n_round in range(rounds):
            for filled in queues if n_round % 2 == 0 else reversed(queues):
                for jobs_per_call in JOBS_PER_CALL:
                    costs += await measure_round(filled, jobs_per_call, n_round)
            say(f"round {n_round + 1} of {rounds}")
        return {q.depth: q.bytes_per_job for q in queues if q.depth}, costs, latencies


def _redis(processes: Processes) -> RedisServer:
    port = free_port()
    return RedisServer(processes, port, processes.folder / f"redis-{port}")


def growth(costs: Sequence[Cost], operation: str, jobs_per_call: int) -> Spread | None:
    """CPU per job at the deepest queue over that at the shallowest, paired by round."""
    chosen = [c for c in costs if (c.operation, c.jobs_per_call) == (operation, jobs_per_call)]
    shallow, deep = (pick(c.depth for c in chosen) for pick in (min, max))
    by_place = {(c.round, c.depth): c.total_us for c in chosen}
    rounds = sorted({c.round for c in chosen})
    return spread(by_place[n, deep] / by_place[n, shallow] for n in rounds)


def cost_table(costs: Sequence[Cost]) -> Table:
    """A row for each operation and way of calling; columns by depth."""
    depths = sorted({cost.depth for cost in costs})
    rows = []
    for operation, jobs_per_call in product(OPERATIONS, JOBS_PER_CALL):
        row = [f"{operation}, {jobs_per_call} a call"]
        for depth in depths:
            place = (operation, jobs_per_call, depth)
            there = [c for c in costs if (c.operation, c.jobs_per_call, c.depth) == place]
            per_s, client, redis = (
                median(getattr(cost, name) for cost in there)
                for name in ("per_s", "client_us", "redis_us")
            )
            row += [f"{per_s:.0f}", f"{client:.0f}+{redis:.0f}"]
        grown = growth(costs, operation, jobs_per_call)
        assert grown is not None
        rows.append([*row, f"{grown.median:.2f} ({grown.low:.2f}..{grown.high:.2f})"])
    head = ["operation"]
    for depth in depths:
        head += [f"{depth} wait\n/s", "CPU us each\nclient+Redis"]
    head.append("CPU, deepest\n/ shallowest")
    title = "The queue, Redis with appendonly everysec: medians over rounds, ratios paired in one"
    return Table(title, head, rows)


def latency_table(latencies: Sequence[Latency]) -> Table:
    """p50 and p99 beside what they must be."""
    (p50_must, p50_aim), (p99_must, p99_aim) = CLAIM_TARGETS_MS.values()
    rows = [
        [
            f"{latency.waiting_elsewhere} jobs in another pool",
            f"{latency.p50_ms:.2f}",
            f"{latency.p99_ms:.2f}",
            f"{latency.engine_p50_ms:.2f}",
            f"{latency.ping_p50_ms:.2f}",
            str(latency.samples),
            verdict_of(latency).value,
        ]
        for latency in latencies
    ]
    title = (
        f"Submit to claim by an idle worker: p50 must be <= {p50_must:g} ms (aim {p50_aim:g}), "
        f"p99 <= {p99_must:g} ms (aim {p99_aim:g})"
    )
    head = ["waiting", "p50 ms", "p99 ms", "engine p50 ms", "PING p50 ms", "samples", "verdict"]
    return Table(title, head, rows)


def verdict_of(latency: Latency) -> Verdict:
    """The worse of p50's and p99's."""
    measured = {"p50": latency.p50_ms, "p99": latency.p99_ms}
    if any(measured[name] > must for name, (must, _) in CLAIM_TARGETS_MS.items()):
        return Verdict.MISSED
    reached = all(measured[name] <= aim for name, (_, aim) in CLAIM_TARGETS_MS.items())
    return Verdict.AIM if reached else Verdict.MET


def judge(costs: Sequence[Cost], latencies: Sequence[Latency]) -> tuple[bool, str]:
    """Is all well, and the run in one line."""
    problems = []
    for operation, jobs_per_call in product(OPERATIONS, JOBS_PER_CALL):
        grown = growth(costs, operation, jobs_per_call)
        if grown is not None and grown.median > FLAT:
            what = f"{operation}, {jobs_per_call} a call"
            problems.append(f"{what} costs {grown.median:.2f} x as much in the deepest queue")
    problems += [
        f"claims take {latency.p50_ms:.2f} ms (p99 {latency.p99_ms:.2f})"
        for latency in latencies
        if verdict_of(latency) is Verdict.MISSED
    ]
    return not problems, f"QUEUE grows: {'; '.join(problems)}" if problems else "QUEUE flat"
