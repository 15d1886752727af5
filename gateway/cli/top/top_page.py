"""The page of `flotilla top`: an overview and a screen as text."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.table import Table
from rich.text import Text

from gateway.cli.job_text import job_table
from gateway.cli.output import duration, figure, level, line, milliseconds
from gateway.cli.queues import pool_table
from gateway.cli.top.screen import KEYS, Screen, View, workers_of
from gateway.cli.workers_command import worker_table

Object = Mapping[str, Any]
_STALE_S = 3.0
_MAX_PROBLEMS = 4
_LATENCIES = (("ttft_s", "TTFT"), ("itl_s", "ITL"), ("queue_wait_s", "wait"), ("e2e_s", "E2E"))


class Shown(NamedTuple):
    """All data of the page."""

    screen: Screen
    overview: Object
    read_at: float
    """When the overview came, on the monotonic clock."""
    jobs: Sequence[Object] = ()
    jobs_error: str = ""
    details: RenderableType | None = None
    """Those of the selected job."""


def live(shown: Shown, console: Console) -> RenderableType:
    """The page for a whole terminal."""
    top = Group(*head(shown))
    layout = Layout()
    layout.split_column(
        Layout(top, size=len(console.render_lines(top)) + 1),
        Layout(body(shown)),
        Layout(_footer(shown.screen), size=1),
    )
    return layout


def once(overview: Object) -> RenderableType:
    """The page for a pipe, or for `--once`."""
    shown = Shown(Screen(selected=-1), overview, time.monotonic())
    return Group(*head(shown), Text(), body(shown))


def head(shown: Shown) -> list[RenderableType]:
    """The verdict, the flow, the pools, the latencies."""
    overview, age_s = shown.overview, time.monotonic() - shown.read_at
    gateway, verdict = overview["gateway"], overview["verdict"]
    engines = ", ".join(overview["engines"]) or "no worker"
    at = time.strftime("%H:%M:%S", time.localtime(overview["at"]))
    stale = f"  STALE: {duration(age_s)} old" if age_s > _STALE_S else ""
    title = f"flotilla {gateway['version']}  {gateway['id']}  {engines}  {at}{stale}"
    lines = [Text(line(title), "bold")]
    if overview["simulated"]:
        lines.append(Text("SIMULATED engine: no model runs, every answer is made up", "yellow"))
    mark = "" if verdict["level"] == "ok" else "! "
    lines.append(level(verdict["level"], f"{mark}{verdict['sentence']}"))
    for problem in verdict["problems"][:_MAX_PROBLEMS]:
        sentence = "" if problem["sentence"] in verdict["sentence"] else problem["sentence"]
        text = "  ".join(filter(None, (sentence, problem["do"])))
        lines += [level(problem["level"], f"  {text}")] if text else []
    return [*lines, _flow(overview), _latency(overview["latency"]), pool_table(overview["pools"])]


def _flow(overview: Object) -> RenderableType:
    rates, pools = overview["rates"], overview["pools"]
    waiting = sum(pool["waiting"] for pool in pools)
    running = sum(pool["running"] for pool in pools)
    flow = Text(
        f"in {_rate(rates, 'submitted')} > waiting {waiting:>6} > running {running:>6} "
        f"> done {_rate(rates, 'completed')}"
    )
    parts = [
        f"failed {_rate(rates, 'failed')}",
        f"cancelled {_rate(rates, 'cancelled')}",
        f"tokens {_rate(rates, 'output_tokens')}",
        f"dead letters {overview.get('dead_letters') or 0:>5}",
    ]
    return Group(flow, Columns(map(Text, parts), padding=(0, 2)))


def _rate(rates: Object, name: str) -> str:
    return f"{figure(rates.get(name)):>6}/s"


def _latency(latency: Object) -> RenderableType:
    parts = ["p50 p95 p99"]
    for name, title in _LATENCIES:
        found = latency.get(name) or {}
        figures = " ".join(f"{milliseconds(found.get(key)):>6}" for key in ("p50", "p95", "p99"))
        parts.append(f"{title} {figures}")
    return Columns(map(Text, parts), padding=(0, 2))


def body(shown: Shown) -> RenderableType:
    """The lower part: a list, details, or help."""
    screen = shown.screen
    match screen.view:
        case View.HELP:
            return Group(*(Text(f"  {key:10} {text}") for key, text in KEYS))
        case View.DETAILS:
            of_job = screen.rows is View.JOBS and shown.details
            return of_job or _worker_details(shown)
        case View.JOBS:
            return _marked(screen, _jobs(shown))
    return _marked(screen, _workers(shown))


def _marked(screen: Screen, rows: RenderableType) -> RenderableType:
    title = f"{screen.rows}" + (f"  filter: {screen.filter}" if screen.filter else "")
    return Group(Text(line(title), "bold underline"), rows)


def _jobs(shown: Shown) -> RenderableType:
    if shown.jobs_error:
        return level("problem", shown.jobs_error)
    if not shown.jobs:
        return Text("no job")
    made = job_table(shown.jobs)
    return _select(made, shown.screen.selected)


def _select(made: RenderableType, selected: int) -> RenderableType:
    if isinstance(made, Table) and 0 <= selected < len(made.rows):
        made.rows[selected].style = "reverse"
    return made


def _workers(shown: Shown) -> RenderableType:
    workers = workers_of(shown.screen, shown.overview)
    if not workers:
        return Text("no worker")
    made = worker_table(workers)
    for column in made.columns:
        # A row stays one line, and its columns stay in their places when figures grow.
        column.no_wrap, column.overflow, column.min_width = True, "ellipsis", 4
    return _select(made, shown.screen.selected)


def _worker_details(shown: Shown) -> RenderableType:
    subject = shown.screen.subject
    found = next((each for each in shown.overview["workers"] if each["id"] == subject), None)
    if found is None:
        return Text(f"{subject} is not there any more.")
    problems = shown.overview["verdict"]["problems"]
    lines = [
        level(each["level"], each["sentence"]) for each in problems if each.get("worker") == subject
    ]
    fields = Table(box=None, show_header=False, pad_edge=False)
    for name, value in found.items():
        shown_value = ", ".join(map(str, value)) if isinstance(value, list) else value
        fields.add_row(Text(name), Text(line("" if shown_value is None else shown_value)))
    return Group(*lines, fields)


def _footer(screen: Screen) -> Text:
    if screen.typing is not None:
        return Text(f"/{screen.typing}_", "reverse")
    if screen.question is not None:
        return Text(f"{screen.question.question}  y: yes, any other key: no", "bold reverse")
    if screen.message:
        return Text(line(screen.message), "bold")
    return Text(
        "w workers  j jobs  / filter  d describe  c cancel  r retry  x drain  ! worst  ? help  q"
    )
