"""`faults`: kill processes of a fleet, or inject other faults; print what its clients observed.

Exit status 1 if a check failed, an answer was wrong, or a client hung.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from load_tests.faults.batches.command import batch_options, run_batches
from load_tests.faults.cluster.run import run_cluster
from load_tests.faults.kills.command import kill_options, run_kills
from load_tests.faults.schedules.play import play_drawn
from load_tests.harness.session import OUTPUT, add_options, print_progress, session

HELP = "inject faults into a fleet; print what its clients observe"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    options: dict[str, tuple[Any, str]] = {
        "--cluster": (
            False,
            "give the shards of a Redis Cluster other masters instead, `--times` by each fault",
        ),
        "--times": (30, "of --cluster"),
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
    if arguments.vllm and not arguments.defaults:
        raise SystemExit("--vllm is for --defaults (kills) only")
    with session() as processes:
        folder = processes.folder
        if arguments.schedule:
            return _schedule(arguments, folder)
        if arguments.batches:
            return run_batches(arguments, folder)
        if arguments.cluster:
            return run_cluster(arguments, folder)
        return run_kills(arguments, folder)


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
    return 1 if results.failures or results.hung else 0
