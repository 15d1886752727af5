"""The loop of `flotilla top`: keys in, pages out."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer
from rich.live import Live

from gateway.cli.command import Session, gateway_command
from gateway.cli.exit_codes import ExitCode
from gateway.cli.output import stdout
from gateway.cli.top.feed import Feed
from gateway.cli.top.keyboard import read_keys, single_keys
from gateway.cli.top.screen import Call, Describe, Quit, Screen, View, press, workers_of
from gateway.cli.top.top_page import Shown, live, once

app = typer.Typer()
_KEY_S = 0.1
_NEWEST_S = 1.0
"""The page is drawn so often at least, as the age of the overview is on it."""


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
        return ExitCode.OK
    if session.as_json:
        for event in session.client.follow("/admin/stream"):
            if event.name == "overview":
                session.line(event.json())
        return ExitCode.OK
    feed = Feed(session.client.where, 10.0, first, time.monotonic())
    feed.start()
    try:
        _run(feed, Screen(worker_filter=selected))
    finally:
        feed.stop()
    return ExitCode.OK


def _run(feed: Feed, screen: Screen) -> None:
    drawn_at = 0.0
    with single_keys(), Live(console=stdout(), screen=True, auto_refresh=False) as display:
        while True:
            if feed.message:
                screen, feed.message = replace(screen, message=feed.message), ""
            if feed.changed.is_set() or time.monotonic() - drawn_at > _NEWEST_S:
                feed.changed.clear()
                display.update(live(_shown(feed, screen), display.console), refresh=True)
                drawn_at = time.monotonic()
            for key in read_keys(_KEY_S):
                screen, effect = press(screen, key, _ids(feed, screen), feed.overview or {})
                feed.changed.set()
                feed.show_jobs(screen.job_filter if screen.rows is View.JOBS else None)
                match effect:
                    case Quit():
                        return
                    case Call():
                        feed.call(effect)
                    case Describe(job):
                        feed.describe(job)


def _ids(feed: Feed, screen: Screen) -> Sequence[str]:
    """The rows of the list that is shown."""
    if screen.rows is View.JOBS:
        return [job["id"] for job in feed.jobs]
    return [worker["id"] for worker in workers_of(screen, feed.overview or {"workers": []})]


def _shown(feed: Feed, screen: Screen) -> Shown:
    assert feed.overview is not None
    age_s = time.monotonic() - feed.overview_at
    details = feed.details if screen.rows is View.JOBS else None
    return Shown(screen, feed.overview, age_s, feed.jobs, feed.jobs_error, details)
