"""`overload`: jobs against the bounds of pool, tenant and Redis' memory; simulated.

Exit status 1: an accepted job was not completed, a refusal has another reason than a bound, Redis
ran out of memory, or one of the bounds was never met.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from load_tests.harness.session import (
    OUTPUT,
    add_options,
    print_progress,
    print_tables,
    save_result,
    session,
)
from load_tests.harness.table import Table
from load_tests.overload.bounded_run import EXPECTED, BoundedRun

HELP = "more jobs than the bounds of pool, tenant and Redis' memory allow"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    options = {
        "--jobs": (10_000, "that are submitted, as fast as two gateways take them"),
        "--megabytes": (36, "of Redis, beside what it uses when nothing is stored"),
    }
    add_options(parser, {**options, **OUTPUT})


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    with session() as processes:
        run = BoundedRun(processes.folder, arguments.jobs, arguments.megabytes)
        result = run.run(print_progress)
    codes = sorted(EXPECTED)
    head = ["jobs", "accepted", "completed", *codes, "most of\nthe memory", "s"]
    row = [
        f"{arguments.jobs:,}",
        f"{result.accepted:,}",
        f"{result.ended.get('completed', 0):,}",
        *(f"{result.refused.get(code, 0):,}" for code in codes),
        f"{result.peak:.0%}",
        f"{result.seconds:.0f}",
    ]
    print_tables([Table("Jobs against the bounds", head, [row])], arguments)
    save_result(arguments.json, "overload", asdict(result))
    found = result.problems + result.unmet
    print_progress("; ".join(found) or "all accepted jobs are done")
    return 1 if found else 0
