"""Every command: a help text with two examples that parse, the same names for the same options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import typer

from gateway.cli.exit_codes import MEANINGS, ExitCode
from gateway.cli.main import app
from tests.harness.settings import ROOT as FOLDER

PAGE = (FOLDER / "docs" / "pages" / "start.md").read_text()
ROOT = typer.main.get_command(app)
PROCESSES = {"up", "gateway", "worker", "maintenance"}
"""They run until they are stopped, and print logs."""


def commands(command: Any = ROOT, name: str = "") -> Iterator[tuple[str, Any]]:
    for each, sub in getattr(command, "commands", {}).items():
        full = f"{name} {each}".strip()
        if hasattr(sub, "commands"):
            yield from commands(sub, full)
        else:
            yield full, sub


COMMANDS = dict(commands())


def example_lines(command: Any) -> list[str]:
    _, *lines = [part.strip() for part in (command.epilog or "").split("\n\n")]
    return lines


def test_a_command_has_a_help_text_and_two_examples_of_itself() -> None:
    for name in COMMANDS:
        command = COMMANDS[name]
        assert command.help, name
        lines = example_lines(command)
        assert len(lines) == 2, lines
        for line in lines:
            words = shlex.split(line.partition(" > ")[0])
            assert words[: len(name.split()) + 1] == ["flotilla", *name.split()]
            # This raises if it does not parse.
            command.make_context(name, words[len(name.split()) + 1 :])


def test_a_command_can_print_json() -> None:
    for name in sorted(set(COMMANDS) - PROCESSES):
        options = {option for param in COMMANDS[name].params for option in param.opts}
        assert "--json" in options, name
        if not name.startswith("config"):
            assert {"--url", "--api-key-file", "--timeout"} <= options, name


def test_the_help_and_the_page_list_the_exit_codes() -> None:
    assert set(MEANINGS) == set(ExitCode)
    page = " ".join(PAGE.split())
    for code, text in MEANINGS.items():
        assert f"{code.value} {text}" in ROOT.epilog
        assert f"{code.value} {text}" in page


def test_the_commands_of_the_quick_start_parse() -> None:
    lines = re.findall(r"^flotilla (?!(?:up|gateway|worker|maintenance)\b).*", PAGE, re.MULTILINE)
    assert len(lines) >= 8
    for line in lines:
        _, *words = shlex.split(line, comments=True)
        name = next(each for each in (" ".join(words[:2]), words[0]) if each in COMMANDS)
        COMMANDS[name].make_context(name, words[len(name.split()) :])
