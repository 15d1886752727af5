"""`flotilla doctor`: checks the fleet from this machine; every finding comes with its mend."""

from __future__ import annotations

import time
from collections.abc import Iterable
from importlib import metadata
from typing import Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from gateway.cli.command import Session, gateway_command
from gateway.cli.diagnosis import Facts, Finding, Level, findings
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.output import level, line

app = typer.Typer()
_MARKS = {Level.OK: "ok  ", Level.WARNING: "WARN", Level.PROBLEM: "FAIL"}


@gateway_command(
    app, "doctor", "flotilla doctor", "flotilla doctor --url http://10.0.0.1:8000 --json"
)
def doctor(session: Session) -> ExitCode:
    """Check gateway, Redis, key, versions, clock, models and workers; 1 if something is wrong."""
    facts = _read(session)
    found = list(findings(facts))
    body = {"object": "list", "data": [each.to_json() for each in found]}
    session.show(body, lambda _: _page(found))
    wrong = any(each.level is Level.PROBLEM for each in found)
    if facts.ready is None:
        return ExitCode.UNREACHABLE
    return ExitCode.FAILED if wrong else ExitCode.OK


def _read(session: Session) -> Facts:
    """Ask the gateway; what it refuses is noted."""
    client = session.client
    facts = Facts(client.where.url, metadata.version("flotilla"), time.time())

    def read(name: str, path: str) -> Any:
        try:
            return client.send("GET", path, any_status=name == "ready").json()
        except (CommandError, ValueError) as error:
            facts.errors[name] = str(error)
            return None

    facts.ready = read("ready", "/readyz")
    if facts.ready is not None:
        facts.versions = read("versions", "/version")
        models = read("models", "/v1/models")
        facts.models = None if models is None else models["data"]
        facts.now_s = time.time()
        facts.overview = read("overview", "/admin/overview")
    return facts


def _page(found: Iterable[Finding]) -> RenderableType:
    lines = []
    for each in found:
        lines.append(level(each.level, f"{_MARKS[each.level]}  {each.check}: {each.text}"))
        if each.mend:
            lines.append(Text(f"      mend: {line(each.mend)}"))
    return Group(*lines)
