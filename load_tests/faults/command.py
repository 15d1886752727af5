"""`python -m load_tests faults`: break a fleet on purpose, and print what its clients saw."""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import asdict
from pathlib import Path

from load_tests.faults.catalogue import FAULTS
from load_tests.faults.row import Row, table
from load_tests.faults.run import run_fault
from load_tests.processes import ProcessError
from load_tests.session import default_path, names_of, save, say, session

HELP = "break a fleet on purpose: what do its clients see?"

_TOKENS = 120
_QUICK = {"times": 1, "every_s": 4.0, "tokens": 60}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default=",".join(FAULTS), help=f"of {', '.join(FAULTS)}")
    parser.add_argument("--times", type=int, help="how often each fault (default: its own number)")
    parser.add_argument("--quick", action="store_true", help="each fault once, shorter answers")
    parser.add_argument("--json", type=Path, help="the results (default load_tests/results/...)")
    parser.add_argument("--markdown", action="store_true", help="the table in Markdown")


def main(arguments: argparse.Namespace) -> int:
    path: Path = arguments.json or default_path("faults")
    names = names_of(arguments.only, FAULTS)
    rows: list[Row] = []
    with session() as processes:
        for name in names:
            fault = FAULTS[name]
            times = arguments.times or (_QUICK["times"] if arguments.quick else fault.times)
            every_s = min(fault.every_s, _QUICK["every_s"]) if arguments.quick else fault.every_s
            tokens = int(_QUICK["tokens"] if arguments.quick else _TOKENS)
            began = time.monotonic()
            try:
                row = asyncio.run(
                    run_fault(
                        name,
                        fault,
                        processes.folder,
                        times=int(times),
                        every_s=every_s,
                        tokens=tokens,
                    )
                )
            except ProcessError as error:
                say(f"{name}: no figures: {error}")
                continue
            rows.append(row)
            say(f"{name}: {time.monotonic() - began:.0f} s, {_line(row)}")
    found = table(rows)
    print(f"\n{found.markdown() if arguments.markdown else found.text()}\n")
    for row in rows:
        for note in row.notes:
            print(f"{row.title}: {note}")
    save(path, {"rows": [asdict(row) for row in rows]})
    print(f"results: {path}")
    return 1 if any(row.wrong for row in rows) or len(rows) < len(names) else 0


def _line(row: Row) -> str:
    return (
        f"{row.whole} of {row.streams} streams whole, {sum(row.failed.values())} of {row.jobs} "
        f"jobs failed, {sum(row.wrong.values())} wrong"
    )
