"""The loop of `flotilla top`: keys in, pages out; it reads the overview once a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Annotated
from urllib.parse import quote

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from gateway.cli.command import Session, gateway_command
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.gateway_client import GatewayClient
from gateway.cli.job_text import timeline, why_text
from gateway.cli.output import stdout
from gateway.cli.top.keyboard import read_keys, single_keys
from gateway.cli.top.screen import Call, Describe, Effect, Quit, Screen, View, press, workers_of
from gateway.cli.top.top_page import Shown, live, once

app = typer.Typer()
_READ_S = 1.0
_ANSWER_S = 5.0
"""Timeout of a call: no key is handled meanwhile."""
_DRAIN_S = 120.0
_JOBS = 50


@gateway_command(app, "top", "flotilla top", "flotilla top --once")
def top(
    session: Session,
    single: Annotated[bool, typer.Option("--once", help="Print one page and end.")] = False,
    selected: Annotated[str, typer.Option("--filter", help="Begin with these workers.")] = "",
) -> ExitCode:
    """Watch the fleet: verdict, queues, workers, jobs; `?` shows the keys.

    With --json each overview is one line, one a second. Without a terminal it prints one page.
    """
    first = session.client.get("/admin/overview")
    terminal = sys.stdout.isatty() and sys.stdin.isatty()
    if single or not (session.as_json or terminal):
        session.show(first, once)
    elif session.as_json:
        for event in session.client.follow("/admin/stream"):
            if event.name == "overview":
                session.line(event.json())
    else:
        with closing(GatewayClient(session.client.where, _ANSWER_S)) as client:
            _run(client, Shown(Screen(worker_filter=selected), first, time.monotonic()))
    return ExitCode.OK


def _run(client: GatewayClient, shown: Shown) -> None:
    due = 0.0
    with single_keys(), Live(console=stdout(), screen=True, auto_refresh=False) as display:
        while True:
            if time.monotonic() >= due:
                shown, due = _read(client, shown), time.monotonic() + _READ_S
            display.update(live(shown, display.console), refresh=True)
            for key in read_keys(max(0.0, due - time.monotonic())):
                screen, effect = press(shown.screen, key, _ids(shown), shown.overview)
                if isinstance(effect, Quit):
                    return
                before = shown.screen
                if effect or (screen.rows, screen.filter) != (before.rows, before.filter):
                    due = 0.0
                shown = _carry_out(client, shown._replace(screen=screen), effect)


def _read(client: GatewayClient, shown: Shown) -> Shown:
    """Read everything anew; what can't be read stays as it was."""
    screen = shown.screen
    try:
        overview = client.get("/admin/overview")
        shown = shown._replace(overview=overview, read_at=time.monotonic())
    except CommandError as error:
        return shown._replace(screen=replace(screen, message=str(error)))
    if screen.rows is not View.JOBS:
        return shown
    words = screen.job_filter
    # Only operators get the overview, so the jobs of all tenants can be shown.
    every = words if "tenant:" in words else f"{words} tenant:*".strip()
    try:
        jobs = client.get("/jobs", filter=every, limit=_JOBS)["data"]
    except CommandError as error:
        return shown._replace(jobs=(), jobs_error=str(error))
    return shown._replace(jobs=jobs, jobs_error="")


def _carry_out(client: GatewayClient, shown: Shown, effect: Effect) -> Shown:
    """Carry out a key's effect; the footer shows the result."""
    message = shown.screen.message
    try:
        match effect:
            case Describe(job):
                why, events = client.of_job(job, "/why"), client.of_job(job, "/timeline")
                details = Group(Text(job, "bold"), why_text(why), Text(), timeline(events))
                return shown._replace(details=details)
            case Call("drain", worker, _, message):
                client.post(f"/admin/workers/{quote(worker)}/drain", wait_s=_DRAIN_S)
            case Call(action, job, _, message):
                client.act_on_job(action, job)
    except CommandError as error:
        message = str(error)
    return shown._replace(screen=replace(shown.screen, message=message))


def _ids(shown: Shown) -> Sequence[str]:
    """The rows of the list that is shown."""
    rows = (
        shown.jobs if shown.screen.rows is View.JOBS else workers_of(shown.screen, shown.overview)
    )
    return [row["id"] for row in rows]
