"""The output of commands: tables, figures and durations on stdout, remarks on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from shared.platform.printable import escaped, printable

_PIPE_WIDTH = 400
"""Columns of a table that goes into a pipe: nothing is cut off there."""
_LEVELS = {"ok": "green", "warning": "yellow", "problem": "bold red"}
_STATES = {
    "ready": "green",
    "completed": "green",
    "delivered": "green",
    "busy": "green",
    "in_progress": "cyan",
    "failed": "red",
    "expired": "red",
    "lost": "bold red",
    "starting": "yellow",
    "draining": "yellow",
    "paused": "yellow",
}


def stdout() -> Console:
    """Standard output. Colours only on a terminal, and not with NO_COLOR."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)


def show(what: RenderableType) -> None:
    """Print to stdout. Lines have no spaces at their end, so that they can be compared."""
    console = stdout()
    if console.is_terminal:
        console.print(what)
        return
    with console.capture() as captured:
        console.print(what)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def note(text: str) -> None:
    """Print a remark to stderr."""
    print(printable(text), file=sys.stderr, flush=True)


def json_text(body: Any, indent: int | None = None) -> str:
    """A value as JSON, with control characters escaped."""
    return escaped(json.dumps(body, indent=indent, ensure_ascii=False))


def line(text: Any) -> str:
    """A value as text on one line."""
    return printable(" ".join(str(text).splitlines()).replace("\t", " "))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A table without borders; `COLUMN>` is aligned to the right. Empty names: no head."""
    made = Table(
        box=None, pad_edge=False, header_style="bold", show_edge=False, show_header=any(columns)
    )
    for number, column in enumerate(columns):
        right = column.endswith(">")
        made.add_column(
            column.rstrip(">"),
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=number == 0,  # ids, to be copied
        )
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(line(cell)) for cell in row))
    return made


def state(name: str) -> Text:
    """The state of a job or a worker, in its colour."""
    return Text(name, _STATES.get(name, ""))


def level(name: str, text: str) -> Text:
    """A sentence in the colour of its level: ok, warning or problem."""
    return Text(line(text), _LEVELS.get(name, ""))


def duration(seconds: float | None) -> str:
    """A duration for people: `0.4 s`, `42 s`, `3m04s`, `2h10m`, `4d`; empty if it is not known."""
    if seconds is None:
        return ""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d"


def since(at_s: float | None, until_s: float | None = None) -> str:
    """The time between two moments in Unix seconds; until now without the second."""
    if at_s is None:
        return ""
    return duration((time.time() if until_s is None else until_s) - at_s)


def clock(at_s: float) -> str:
    """A moment in local time, to the millisecond."""
    whole = time.strftime("%H:%M:%S", time.localtime(at_s))
    return f"{whole}.{int(at_s % 1 * 1000):03d}"


def figure(value: float | None) -> str:
    """A number in at most six characters: `0.2`, `31.0`, `1.9k`, `4.2M`; `-` if not known."""
    if value is None:
        return "-"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.1f}{unit}"
    if float(value).is_integer() and abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.0f}" if isinstance(value, int) else f"{value:.1f}"


def milliseconds(seconds: float | None) -> str:
    """A latency: `38 ms`, `1.5 s`; `-` if it is not known."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else f"{seconds:.2f} s"


def count(number: int, what: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
