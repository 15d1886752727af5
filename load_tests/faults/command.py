"""`faults`: kill processes of a fleet, or inject other faults; print what its clients observed.

Exit status 1 if a check of the kills failed, an answer was wrong, a client hung in a schedule, or a
row could not be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import asdict
from pathlib import Path

from load_tests.faults.hostile.catalogue import HOSTILE_REQUESTS, VLLM_HOSTILE_REQUESTS
from load_tests.faults.hostile.row import hostile_table
from load_tests.faults.hostile.run import HostileRun
from load_tests.faults.injected.fault import FAULTS
from load_tests.faults.injected.row import FaultRow, fault_table, make_row
from load_tests.faults.injected.run import run_fault
from load_tests.faults.kills.command import add_kill_arguments, run_kills
from load_tests.faults.schedules.play import play_drawn, play_fixed
from load_tests.harness.errors import ProcessError
from load_tests.harness.session import (
    parse_names,
    print_progress,
    print_tables,
    save_result,
    session,
)

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
_AFTER_S, _QUICK_AFTER_S = 10.0, 2.0
"""Seconds after a hostile request until memory is measured again."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add_kill_arguments(parser)
    parser.add_argument(
        "--table",
        action="store_true",
        help="a table with a row for each of many faults instead of kills (also with --only, "
        "--times or --quick)",
    )
    parser.add_argument(
        "--only",
        help=f"of {', '.join(_ROWS)}; with --hostile of {', '.join(HOSTILE_REQUESTS)}; "
        f"with --hostile --vllm of {', '.join(VLLM_HOSTILE_REQUESTS)}",
    )
    parser.add_argument(
        "--times", type=int, help="injections of each fault (default: depends on it)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="some rows, one injection each, shorter answers"
    )
    parser.add_argument(
        "--hostile",
        action="store_true",
        help="measure what one client's requests do to others instead",
    )
    parser.add_argument(
        "--vllm",
        action="store_true",
        help="--hostile, or kills with --defaults, with real vLLM and the demo model",
    )
    parser.add_argument(
        "--schedule",
        action="store_true",
        help="random pauses of worker, Redis and gateway of about one lease instead",
    )
    parser.add_argument(
        "--rounds", type=int, default=100, help="rounds of --schedule (default 100)"
    )
    parser.add_argument(
        "--seed", default="1", help="of kills and of --schedule; equal seeds draw equal ones"
    )
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first round (default 0)"
    )
    parser.add_argument("--workers", type=int, default=2, help="workers of --schedule (default 2)")
    parser.add_argument(
        "--fleets", type=int, default=3, help="fleets that share the rounds (default 3)"
    )
    parser.add_argument("--json", type=Path, help="result file (default load_tests/results/...)")
    parser.add_argument("--text", action="store_true", help="print the table as text, not Markdown")


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status. Raises SystemExit if options exclude each other."""
    table = bool(arguments.table or arguments.only or arguments.times or arguments.quick)
    simulated_only = arguments.schedule or table or not arguments.defaults
    if arguments.vllm and not arguments.hostile and simulated_only:
        raise SystemExit("--vllm is for --hostile and for --defaults (kills) only")
    with session() as processes:
        folder = processes.folder
        if arguments.schedule:
            return _schedule(arguments, folder)
        if arguments.hostile:
            return _hostile(arguments, folder)
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
    ends = ", ".join(f"{count} {end}" for end, count in results.ends.most_common())
    left = ", ".join(f"{count} {name}" for name, count in results.leftovers.items()) or "nothing"
    bad = f"{len(results.failures)} with a wrong answer, {len(hung)} with a call that hung"
    print(f"{results.rounds} rounds, {bad}")
    print(f"answers: {ends}; wrong: {results.wrong}; left over: {left}")
    print(f"failed, and the client had received more than the record has: {results.records_behind}")
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
        return make_row(FIXED_TITLES[name], results.paused_at, results.calls, results.leftovers)
    fault = FAULTS[name]
    return await run_fault(
        fault,
        folder,
        times=times or fault.times,
        every_s=min(fault.every_s, _QUICK_EVERY_S) if quick else fault.every_s,
        tokens=_QUICK_TOKENS if quick else _TOKENS,
        timeout_s=_QUICK_TIMEOUT_S if quick else _TIMEOUT_S,
    )


def _hostile(arguments: argparse.Namespace, folder: Path) -> int:
    after_s = _QUICK_AFTER_S if arguments.quick else _AFTER_S
    known = VLLM_HOSTILE_REQUESTS if arguments.vllm else HOSTILE_REQUESTS
    names = parse_names(arguments.only or ",".join(known), known)
    run = HostileRun(folder, after_s, vllm=arguments.vllm)
    run.run(known, names)
    rows = list(run.rows.values())
    print_tables([hostile_table(rows, after_s)], arguments)
    for name, lines in run.wrong.items():
        for line in lines:
            print(f"FAILED: {name}: {line}")
    save_result(
        arguments.json, "hostile", {"rows": [asdict(row) for row in rows], "failures": run.wrong}
    )
    return 1 if any(run.wrong.values()) else 0
