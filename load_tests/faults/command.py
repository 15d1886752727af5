"""`python -m load_tests faults`: break a fleet on purpose, and print what its clients saw.

Exit status 1 where an answer was wrong, a client of a schedule hung, or a row has no figures.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import asdict
from pathlib import Path

from load_tests.faults.hostile.requests import HOSTILE, VLLM_HOSTILE
from load_tests.faults.hostile.run import (
    HostileRow,
    hostile_table,
    run_hostile,
    run_hostile_vllm,
)
from load_tests.faults.injected.catalogue import FAULTS
from load_tests.faults.injected.row import Row, table
from load_tests.faults.injected.run import GIVEN_TIMES, GIVEN_TITLES, run_fault, run_given
from load_tests.faults.schedules.play import Fuzz, play_drawn
from load_tests.harness.processes import ProcessError, Processes
from load_tests.harness.session import default_path, names_of, save, say, session

HELP = "break a fleet on purpose: what do its clients see?"

_TOKENS = 120
_QUICK_TIMES, _QUICK_EVERY_S, _QUICK_TOKENS = 1, 3.0, 40
_PATIENCE_S, _QUICK_PATIENCE_S = 40.0, 15.0
"""After so long without an end a client leaves."""
_ROWS = (*FAULTS, *GIVEN_TITLES)
_QUICK_ROWS = (
    "worker-kill",
    "worker-stop",
    "twin",
    "redis-stop",
    "redis-evicts",
    "job-deleted",
    "log-deleted",
    "flushall",
    "lost-lease",
    "silent-redis",
)
_AFTER_S, _QUICK_AFTER_S = 10.0, 2.0
"""After a hostile request, before memory is looked at again."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only",
        help=f"of {', '.join(_ROWS)}; with --hostile of {', '.join(HOSTILE)}; "
        f"with --vllm of {', '.join(VLLM_HOSTILE)}",
    )
    parser.add_argument("--times", type=int, help="how often each fault (default: its own number)")
    parser.add_argument(
        "--quick", action="store_true", help="some rows, each once, shorter answers"
    )
    parser.add_argument(
        "--hostile", action="store_true", help="instead: what one client's requests do to others"
    )
    parser.add_argument("--vllm", action="store_true", help="--hostile with real vLLM")
    parser.add_argument(
        "--schedule",
        action="store_true",
        help="instead: pauses of worker, Redis and gateway around the lease, drawn from a seed",
    )
    parser.add_argument("--rounds", type=int, default=100, help="of --schedule (default 100)")
    parser.add_argument("--seed", default="1", help="of --schedule: the same rounds again")
    parser.add_argument("--first", type=int, default=0, help="the first round's number (default 0)")
    parser.add_argument("--workers", type=int, default=2, help="of --schedule (default 2)")
    parser.add_argument("--fleets", type=int, default=3, help="that share the rounds (default 3)")
    parser.add_argument("--json", type=Path, help="the results (default load_tests/results/...)")
    parser.add_argument("--text", action="store_true", help="the table as text, not Markdown")


def main(arguments: argparse.Namespace) -> int:
    with session() as processes:
        if arguments.schedule:
            return _schedule(arguments, processes)
        if arguments.hostile or arguments.vllm:
            return _hostile(arguments, processes)
        return _table(arguments, processes)


def _schedule(arguments: argparse.Namespace, processes: Processes) -> int:
    fuzz: Fuzz = asyncio.run(
        play_drawn(
            processes.folder / "schedule",
            seed=arguments.seed,
            rounds=arguments.rounds,
            first=arguments.first,
            workers=arguments.workers,
            fleets=arguments.fleets,
            say=say,
        )
    )
    hung = [f"HUNG {round_}" for round_ in fuzz.hung]
    print("\n".join(["", *hung, *(f"WRONG {failure}" for failure in fuzz.failures)]))
    ends = ", ".join(f"{count} {end}" for end, count in fuzz.ends.most_common())
    left = ", ".join(f"{count} {name}" for name, count in fuzz.left.items()) or "nothing"
    bad = f"{len(fuzz.failures)} with a wrong answer, {len(hung)} with a hung client"
    print(f"{fuzz.rounds} rounds, {bad}")
    print(f"answers: {ends}; wrong: {fuzz.wrong}; left over: {left}")
    print(f"failed, and the client had more than the record: {fuzz.records_behind}")
    return 1 if fuzz.failures or fuzz.hung else 0


def _table(arguments: argparse.Namespace, processes: Processes) -> int:
    path: Path = arguments.json or default_path("faults")
    usual = _QUICK_ROWS if arguments.quick else _ROWS
    names = names_of(arguments.only or ",".join(usual), _ROWS)
    rows: list[Row] = []
    for name in names:
        began = time.monotonic()
        try:
            row = asyncio.run(_row(name, arguments, processes.folder))
        except ProcessError as error:
            say(f"{name}: no figures: {error}")
            continue
        rows.append(row)
        say(f"{name}: {time.monotonic() - began:.0f} s, {_line(row)}")
    found = table(rows)
    print(f"\n{found.text() if arguments.text else found.markdown()}\n")
    for row in rows:
        for note in row.notes:
            print(f"{row.title}: {note}")
    save(path, {"rows": [asdict(row) for row in rows]})
    print(f"results: {path}")
    return 1 if any(row.wrong for row in rows) or len(rows) < len(names) else 0


def _hostile(arguments: argparse.Namespace, processes: Processes) -> int:
    path: Path = arguments.json or default_path("hostile")
    after_s = _QUICK_AFTER_S if arguments.quick else _AFTER_S
    rows: list[HostileRow] = []
    known = VLLM_HOSTILE if arguments.vllm else HOSTILE
    names = names_of(arguments.only or ",".join(known), known)
    if arguments.vllm:
        chosen = {name: VLLM_HOSTILE[name] for name in names}
        rows += run_hostile_vllm(chosen, processes, after_s)
    for name in () if arguments.vllm else names:
        began = time.monotonic()
        rows.append(run_hostile(name, HOSTILE[name], processes.folder, after_s))
        say(f"{name}: {time.monotonic() - began:.0f} s, {rows[-1].answered}")
    found = hostile_table(rows, after_s)
    print(f"\n{found.text() if arguments.text else found.markdown()}\n")
    save(path, {"rows": [asdict(row) for row in rows]})
    print(f"results: {path}")
    return 0


async def _row(name: str, arguments: argparse.Namespace, folder: Path) -> Row:
    quick: bool = arguments.quick
    if name in GIVEN_TITLES:
        usual = _QUICK_TIMES if quick else GIVEN_TIMES
        return await run_given(name, folder, times=arguments.times or usual)
    fault = FAULTS[name]
    return await run_fault(
        name,
        fault,
        folder,
        times=arguments.times or (_QUICK_TIMES if quick else fault.times),
        every_s=min(fault.every_s, _QUICK_EVERY_S) if quick else fault.every_s,
        tokens=_QUICK_TOKENS if quick else _TOKENS,
        patience_s=_QUICK_PATIENCE_S if quick else _PATIENCE_S,
    )


def _line(row: Row) -> str:
    return (
        f"{row.whole} of {row.streams} streams whole, {sum(row.failed.values())} of {row.jobs} "
        f"jobs failed, {sum(row.wrong.values())} wrong"
    )
