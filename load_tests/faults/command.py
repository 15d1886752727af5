"""`faults`: kill processes of a fleet, or inject other faults; print what its clients observed.

Exit status 1 if a check of the kills failed, an answer was wrong, a client hung in a schedule, or a
row could not be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from load_tests.faults.batches.command import batch_options, run_batches
from load_tests.faults.cluster.run import run_cluster
from load_tests.faults.injected.fault import FAULTS
from load_tests.faults.injected.row import FaultRow, fault_table, make_row
from load_tests.faults.injected.run import run_fault
from load_tests.faults.kills.command import kill_options, run_kills
from load_tests.faults.schedules.play import play_drawn, play_fixed
from load_tests.harness.session import (
    OUTPUT,
    add_options,
    parse_names,
    print_progress,
    print_tables,
    save_result,
    session,
)
from tests.harness.waiting import ProcessError

HELP = "inject faults into a fleet; print what its clients observe"

FIXED_TITLES = {
    "lost-lease": "Redis stopped for 1/60 of a lease, then the worker until 0.83 of it has passed",
    "silent-redis": "Redis stopped for 0.9 of a lease, one worker, young streams",
}
_FIXED_TIMES = 11
_TOKENS = 120
_QUICK_TIMES, _QUICK_EVERY_S, _QUICK_TOKENS = 1, 3.0, 40
_TIMEOUT_S, _QUICK_TIMEOUT_S = 40.0, 15.0
"""A client's time limit for a call."""
_ROWS = (*FAULTS, *FIXED_TITLES)
_QUICK_ROWS = (
    "worker-kill,worker-stop,same-id,redis-stop,redis-evicts,job-deleted,log-deleted,flushall,"
    "lost-lease,silent-redis"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    options: dict[str, tuple[Any, str]] = {
        "--table": (
            False,
            "a table with a row for each of many faults instead of kills (also with --only, "
            "--times or --quick)",
        ),
        "--only": (str, f"of {', '.join(_ROWS)}"),
        "--times": (int, "injections of each fault (default: depends on it)"),
        "--quick": (False, "some rows, one injection each, shorter answers"),
        "--cluster": (
            False,
            "give the shards of a Redis Cluster other masters instead, `--times` by each fault",
        ),
        "--vllm": (False, "kills with --defaults, with vLLM and the demo model"),
        "--schedule": (
            False,
            "random pauses of worker, Redis and gateway of about one lease instead",
        ),
        "--rounds": (100, "rounds of --schedule"),
        "--seed": ("1", "of kills, --schedule and --batches; equal seeds draw equal ones"),
        "--first": (0, "number of the first round"),
        "--workers": (2, "workers of --schedule"),
        "--fleets": (3, "fleets that share the rounds"),
        "--json": OUTPUT["--json"],
        "--text": (False, "print the table as text, not Markdown"),
    }
    add_options(parser, {**kill_options(), **batch_options(), **options})


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status. Raises SystemExit if options exclude each other."""
    table = bool(arguments.table or arguments.only or arguments.times or arguments.quick)
    simulated_only = arguments.schedule or table or not arguments.defaults
    if arguments.vllm and simulated_only:
        raise SystemExit("--vllm is for --defaults (kills) only")
    with session() as processes:
        folder = processes.folder
        if arguments.schedule:
            return _schedule(arguments, folder)
        if arguments.batches:
            return run_batches(arguments, folder)
        if arguments.cluster:
            return run_cluster(arguments, folder)
        return _table(arguments, folder) if table else run_kills(arguments, folder)


def _schedule(arguments: argparse.Namespace, folder: Path) -> int:
    results = asyncio.run(
        play_drawn(
            folder / "schedule",
            seed=arguments.seed,
            rounds=arguments.rounds,
            first=arguments.first,
            workers=arguments.workers,
            fleets=arguments.fleets,
            progress=print_progress,
        )
    )
    hung = [f"HUNG {round_}" for round_ in results.hung]
    print("\n".join(["", *hung, *(f"WRONG {failure}" for failure in results.failures)]))
    calls = results.calls
    counts = Counter((call.seen.complete and "complete") or call.seen.reason for call in calls)
    ends = ", ".join(f"{count} {end}" for end, count in counts.most_common())
    left = ", ".join(f"{count} {name}" for name, count in results.leftovers.items()) or "nothing"
    bad = f"{len(results.failures)} with a wrong answer, {len(hung)} with a call that hung"
    print(f"{len(results.rounds)} rounds, {bad}")
    print(f"answers: {ends}; wrong: {sum(bool(c.errors) for c in calls)}; left over: {left}")
    behind = sum(call.record_behind for call in calls)
    print(f"failed, and the client had received more than the record has: {behind}")
    return 1 if results.failures or results.hung else 0


def _table(arguments: argparse.Namespace, folder: Path) -> int:
    names = parse_names(
        arguments.only or (_QUICK_ROWS if arguments.quick else ",".join(_ROWS)), _ROWS
    )
    rows: list[FaultRow] = []
    for name in names:
        began = time.monotonic()
        try:
            row = asyncio.run(_row(name, arguments, folder / name))
        except ProcessError as error:
            print_progress(f"{name}: no figures: {error}")
            continue
        rows.append(row)
        print_progress(
            f"{name}: {time.monotonic() - began:.0f} s, "
            f"{row.complete} of {row.streams} streams complete, "
            f"{sum(row.failed.values())} of {row.jobs} jobs failed, {sum(row.wrong.values())} wrong"
        )
    print_tables([fault_table(rows)], arguments)
    for row in rows:
        for note in row.notes:
            print(f"{row.title}: {note}")
    save_result(arguments.json, "faults", {"rows": [asdict(row) for row in rows]})
    return 1 if any(row.wrong for row in rows) or len(rows) < len(names) else 0


async def _row(name: str, arguments: argparse.Namespace, folder: Path) -> FaultRow:
    quick, times = arguments.quick, arguments.times or (_QUICK_TIMES if arguments.quick else 0)
    if name in FIXED_TITLES:
        results = await play_fixed(
            name, folder, rounds=times or _FIXED_TIMES, progress=lambda line: None
        )
        paused_at = [each.paused_at for each in results.rounds]
        return make_row(FIXED_TITLES[name], paused_at, results.calls, results.leftovers)
    fault = FAULTS[name]
    return await run_fault(
        fault,
        folder,
        times=times or fault.times,
        every_s=min(fault.every_s, _QUICK_EVERY_S) if quick else fault.every_s,
        tokens=_QUICK_TOKENS if quick else _TOKENS,
        timeout_s=_QUICK_TIMEOUT_S if quick else _TIMEOUT_S,
    )
