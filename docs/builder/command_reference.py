"""The page of the `flotilla` command, from its own help."""

from __future__ import annotations

import typer
from typer.cli import get_docs_for_click
from typer.main import get_command

from docs.builder.tables import plain

_INTRODUCTION = """
This page is made of what `flotilla --help` prints. Commands that ask a gateway find it by `--url`,
else by `FLOTILLA_URL`, else by the `flotilla up` that runs in this folder.
"""


def page(app: typer.Typer) -> str:
    """The page, in Markdown."""
    command = get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="flotilla")
    title, rest = text.split("\n", 1)
    return f"{title}\n{_INTRODUCTION}{plain(rest)}"
