"""Options that several commands have, and the question before a change."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from gateway.cli.completion import model_names
from gateway.cli.exit_codes import CommandError, ExitCode

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would change.")]
Reason = Annotated[str, typer.Option("--reason", help="For the audit log.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="One of the fleet's models; without it the default.",
        autocompletion=model_names,
    ),
]

Pairs = Annotated[
    list[str] | None, typer.Option("--meta", metavar="NAME=VALUE", help="Kept with it.")
]


def parse_pairs(texts: Sequence[str]) -> dict[str, str]:
    """The names and values of `--meta`. Raises CommandError."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise CommandError(f"--meta is NAME=VALUE, not {text!r}", ExitCode.USAGE)
        found[name] = value
    return found


def confirm(question: str) -> None:
    """Ask; raises CommandError if the answer is no, or if there is no terminal to ask on."""
    if not sys.stdin.isatty():
        raise CommandError(f"{question} Add --yes to do it without a question.", ExitCode.USAGE)
    if not typer.confirm(question, err=True):
        raise CommandError("nothing was changed", ExitCode.REFUSED)
