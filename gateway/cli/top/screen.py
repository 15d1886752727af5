"""What the screen of `flotilla top` shows, and what each key changes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from gateway.cli.worker_order import urgency

KEYS = (
    ("w", "workers"),
    ("j", "jobs"),
    ("up, down", "select a row"),
    ("d, Enter", "describe the selected worker or job: why it waits, its timeline"),
    ("/", "filter: jobs as in `flotilla jobs ls`, workers by a part of their line; Enter ends it"),
    ("c", "cancel the selected job"),
    ("r", "retry the selected job"),
    ("x", "drain the selected worker"),
    ("!", "select the worst worker, or show what has failed"),
    ("?", "this help"),
    ("Esc", "back"),
    ("q", "quit"),
)
"""For the help page."""
FAILED = "state:failed since:1h"


class View(StrEnum):
    """What the lower part shows."""

    WORKERS = "workers"
    JOBS = "jobs"
    HELP = "help"
    DETAILS = "details"


class Call(NamedTuple):
    """A change that a key asks for, once it is confirmed."""

    action: str
    """`cancel`, `retry` or `drain`."""
    subject: str
    """The id of the job, or of the worker."""
    question: str
    done: str


class Describe(NamedTuple):
    """Read the details of a job."""

    job: str


class Quit(NamedTuple):
    """End the command."""


Effect = Call | Describe | Quit | None


@dataclass(frozen=True)
class Screen:
    """The state that keys change."""

    view: View = View.WORKERS
    rows: View = View.WORKERS
    """The list to which details and help go back."""
    selected: int = 0
    worker_filter: str = ""
    job_filter: str = ""
    typing: str | None = None
    """The filter while it is typed."""
    question: Call | None = None
    subject: str = ""
    """The id that the details are about."""
    message: str = ""

    @property
    def filter(self) -> str:
        """The filter of the list that is shown."""
        return self.job_filter if self.rows is View.JOBS else self.worker_filter


def workers_of(screen: Screen, overview: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The workers that the filter selects, the unhealthy ones first."""
    words = screen.worker_filter.lower().split()
    found = [
        worker
        for worker in overview["workers"]
        if all(
            word in f"{worker['id']} {worker['pool']} {worker['state']}".lower() for word in words
        )
    ]
    return sorted(found, key=urgency)


def press(
    screen: Screen, key: str, ids: Sequence[str], overview: Mapping[str, Any]
) -> tuple[Screen, Effect]:
    """The screen after a key, and the effect to carry out; `ids` are the rows of the list."""
    if screen.typing is not None:
        return _type(screen, key), None
    if screen.question is not None:
        call = screen.question if key == "y" else None
        return replace(screen, question=None, message="" if call else "not done"), call
    screen = replace(screen, message="")
    if key in ("q", "ctrl-c"):
        return screen, Quit()
    if key in ("up", "down"):
        step = 1 if key == "down" else -1
        last = max(0, len(ids) - 1)
        return replace(screen, selected=min(max(0, screen.selected + step), last)), None
    if key == "esc":
        return _back(screen), None
    if key == "!":
        return _worst(screen, overview), None
    if key in ("d", "enter", "c", "r", "x"):
        return _act(screen, key, ids)
    return _show(screen, key), None


def _show(screen: Screen, key: str) -> Screen:
    match key:
        case "j":
            return replace(screen, view=View.JOBS, rows=View.JOBS, selected=0)
        case "w":
            return replace(screen, view=View.WORKERS, rows=View.WORKERS, selected=0)
        case "?":
            return replace(screen, view=View.HELP)
        case "/":
            return replace(screen, view=screen.rows, typing=screen.filter)
    return screen


def _type(screen: Screen, key: str) -> Screen:
    text = screen.typing or ""
    if key == "esc":
        return replace(screen, typing=None)
    if key == "enter":
        return _filtered(replace(screen, typing=None), text.strip())
    if key == "backspace":
        return replace(screen, typing=text[:-1])
    return replace(screen, typing=text + key) if len(key) == 1 else screen


def _filtered(screen: Screen, text: str) -> Screen:
    if screen.rows is View.JOBS:
        return replace(screen, selected=0, job_filter=text)
    return replace(screen, selected=0, worker_filter=text)


def _back(screen: Screen) -> Screen:
    if screen.view is not screen.rows:
        return replace(screen, view=screen.rows, subject="")
    return _filtered(screen, "")


def _worst(screen: Screen, overview: Mapping[str, Any]) -> Screen:
    """The list of workers with the worst one selected, else the jobs that have failed."""
    problems = overview["verdict"]["problems"]
    workers = [problem["worker"] for problem in problems if problem.get("worker")]
    if workers:
        shown = replace(screen, view=View.WORKERS, rows=View.WORKERS, worker_filter="")
        ids = [worker["id"] for worker in workers_of(shown, overview)]
        return replace(shown, selected=ids.index(workers[0]) if workers[0] in ids else 0)
    return replace(screen, view=View.JOBS, rows=View.JOBS, selected=0, job_filter=FAILED)


def _act(screen: Screen, key: str, ids: Sequence[str]) -> tuple[Screen, Effect]:
    """Act on the selected row, or on what the details are about."""
    chosen = screen.subject if screen.view is View.DETAILS else ""
    if not chosen and screen.selected < len(ids):
        chosen = ids[screen.selected]
    if not chosen:
        return replace(screen, message="select a row first"), None
    is_job = screen.rows is View.JOBS
    if key in ("d", "enter"):
        shown = replace(screen, view=View.DETAILS, subject=chosen)
        return shown, Describe(chosen) if is_job else None
    calls = {
        "c": Call("cancel", chosen, f"Cancel {chosen}?", f"{chosen} is cancelled"),
        "r": Call("retry", chosen, f"Retry {chosen} as a new job?", f"{chosen} is retried"),
        "x": Call("drain", chosen, f"Drain {chosen}?", f"{chosen} drains"),
    }
    if is_job == (key == "x"):
        need = "worker" if key == "x" else "job"
        return replace(screen, message=f"select a {need} first: {need[0]}"), None
    return replace(screen, question=calls[key]), None
