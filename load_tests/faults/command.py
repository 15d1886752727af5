"""`faults`: kill processes of a fleet, or inject other faults; print what its clients observed.

Exit status 1 if a check failed, an answer was wrong, or a client hung.
"""

from __future__ import annotations

import argparse
from typing import Any

from load_tests.faults.batches.command import batch_options, run_batches
from load_tests.faults.cluster.run import run_cluster
from load_tests.faults.kills.command import kill_options, run_kills
from load_tests.harness.session import OUTPUT, add_options, session

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
        "--seed": ("1", "equal seeds draw equal faults"),
        **OUTPUT,
    }
    add_options(parser, {**kill_options(), **batch_options(), **options})


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status. Raises SystemExit if options exclude each other."""
    if arguments.vllm and not arguments.defaults:
        raise SystemExit("--vllm is for --defaults (kills) only")
    with session() as processes:
        folder = processes.folder
        if arguments.batches:
            return run_batches(arguments, folder)
        if arguments.cluster:
            return run_cluster(arguments, folder)
        return run_kills(arguments, folder)
