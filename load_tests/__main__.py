"""`python -m load_tests [COMMAND]`: what Flotilla costs and how fast it is."""

from __future__ import annotations

import argparse
import sys
from typing import Protocol, cast

from load_tests.autoscale import command as autoscale_simulation
from load_tests.bench import compare, run
from load_tests.faults import command as faults
from load_tests.job_queue import command as queue_depth
from load_tests.soak import command as soak
from load_tests.vllm import command as real_vllm


class Command(Protocol):
    """A module that is a command."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Its own options."""

    def main(self, arguments: argparse.Namespace) -> int:
        """Returns the exit code."""


COMMANDS = {
    "run": cast(Command, run),
    "compare": cast(Command, compare),
    "queue": cast(Command, queue_depth),
    "autoscale": cast(Command, autoscale_simulation),
    "soak": cast(Command, soak),
    "faults": cast(Command, faults),
    "vllm": cast(Command, real_vllm),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m load_tests", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        command.add_arguments(commands.add_parser(name, help=command.HELP))
    given = sys.argv[1:]
    if not given or (given[0].startswith("-") and given[0] not in ("-h", "--help")):
        given = ["run", *given]
    arguments = parser.parse_args(given)
    return COMMANDS[arguments.command].main(arguments)


if __name__ == "__main__":
    sys.exit(main())
