"""`python -m load_tests [COMMAND]`: measure Flotilla's cost, speed and behaviour in faults."""

from __future__ import annotations

import argparse
import sys
from types import ModuleType

from load_tests import continuation, edge, job_queue
from load_tests.bench import run
from load_tests.fairness import command as fairness
from load_tests.faults import command as faults
from load_tests.placement import command as placement
from load_tests.soak import command as soak
from load_tests.vllm import command as vllm

COMMANDS: dict[str, ModuleType] = {
    "run": run,
    "queue": job_queue,
    "soak": soak,
    "fairness": fairness,
    "placement": placement,
    "faults": faults,
    "vllm": vllm,
    "continuation": continuation,
    "edge": edge,
}


def main() -> int:
    """Run the command that the command line names, `run` by default."""
    parser = argparse.ArgumentParser(prog="python -m load_tests", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        command.add_arguments(commands.add_parser(name, help=command.HELP))
    given = sys.argv[1:]
    if not given or (given[0].startswith("-") and given[0] not in ("-h", "--help")):
        given = ["run", *given]
    arguments = parser.parse_args(given)
    status: int = COMMANDS[arguments.command].main(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
