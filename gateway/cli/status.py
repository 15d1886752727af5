"""`flotilla status`: the fleet's plain figures, once or refreshed in place."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from gateway.cli.command import Session, gateway_command
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.output import figure, level, line, stdout
from gateway.cli.queues import pool_table
from gateway.cli.workers_command import worker_table

app = typer.Typer()
_EVERY_S = 1.0


@gateway_command(app, "status", "flotilla status", "flotilla status --watch")
def status(
    session: Session,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh it each second.")] = False,
) -> None:
    """Show the fleet: what is wrong, what waits and runs in each pool, its workers.

    With --json --watch each overview is one line.
    """
    if watch and session.as_json:
        for event in session.client.follow("/admin/stream"):
            if event.name == "overview":
                session.line(event.json())
    elif watch:
        _watch(session)
    else:
        session.show(session.client.get("/admin/overview"), page)


def _watch(session: Session) -> None:
    if not sys.stdout.isatty():
        raise CommandError("--watch needs a terminal, or --json", ExitCode.USAGE)
    shown = page(session.client.get("/admin/overview"))
    with Live(shown, console=stdout(), screen=True, auto_refresh=False) as display:
        while True:
            display.refresh()
            time.sleep(_EVERY_S)
            try:
                shown = page(session.client.get("/admin/overview"))
                display.update(shown)
            except CommandError as error:  # what was read last stays on the screen
                display.update(Group(level("problem", str(error)), shown))


def page(overview: Mapping[str, Any]) -> RenderableType:
    """An overview as text."""
    gateway, verdict, pools = overview["gateway"], overview["verdict"], overview["pools"]
    engines = ", ".join(overview["engines"]) or "no worker"
    at = time.strftime("%H:%M:%S", time.localtime(overview["at"]))
    lines: list[RenderableType] = [
        Text(line(f"flotilla {gateway['version']}  {gateway['id']}  {engines}  {at}"), "bold")
    ]
    if overview["simulated"]:
        lines.append(Text("SIMULATED engine: no model runs, every answer is made up", "yellow"))
    lines.append(level(verdict["level"], verdict["sentence"]))
    lines += [
        level(each["level"], f"  {each['sentence']}  {each['do']}") for each in verdict["problems"]
    ]
    waiting, running = (sum(pool[name] for pool in pools) for name in ("waiting", "running"))
    tokens = figure(overview["rates"].get("output_tokens"))
    lines.append(Text(f"waiting {waiting}, running {running}, tokens {tokens}/s"))
    workers = overview["workers"]
    none = Text("There is no worker.")
    return Group(*lines, pool_table(pools), worker_table(workers) if workers else none)
