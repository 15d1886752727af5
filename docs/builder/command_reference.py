"""The page of the `flotilla` command, from its own help."""

from __future__ import annotations

import re

import typer
from typer.cli import get_docs_for_click
from typer.main import get_command

from docs.builder.tables import plain

_INTRODUCTION = """
This page is made of what `flotilla --help` prints; each command has `-h`. Commands that ask a
gateway find it by `--url`, else by `FLOTILLA_URL`, else by the `flotilla up` that runs in this
folder. `--json` prints what the API answers, for scripts.
"""
_CUT_LISTS = re.compile(r"^\*\*Commands\*\*:\n\n(?:\* .*\n)+\n", re.MULTILINE)
_HELP = re.compile(r"^(?:\*\*Options\*\*:\n\n)?\* `--help`: .*\n", re.MULTILINE)
_EXAMPLES = re.compile(r"^Examples:\n\n((?: {2}.*\n+)+)", re.MULTILINE)


def page(app: typer.Typer) -> str:
    """The page, in Markdown."""
    command = get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="flotilla")
    title, rest = text.split("\n", 1)
    rest = _HELP.sub("", _CUT_LISTS.sub("", rest))
    return plain(f"{title}\n{_INTRODUCTION}{_EXAMPLES.sub(_as_code, rest)}")


def _as_code(match: re.Match[str]) -> str:
    lines = [line.strip() for line in match[1].splitlines() if line.strip()]
    return "\n".join(["Examples:", "", "```sh", *lines, "```", "", ""])
