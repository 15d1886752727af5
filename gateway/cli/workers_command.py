"""`flotilla workers`: list the workers with their states, drain some."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gateway.cli.command import Session, gateway_command
from gateway.cli.completion import worker_ids
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.options import Reason
from gateway.cli.output import duration, figure, level, note, state, table
from gateway.cli.queues import OPERATION_S

app = typer.Typer(help="Workers: list, drain.", no_args_is_help=True)
_POLL_S = 1.0
_BAR = 16


@gateway_command(app, "ls", "flotilla workers ls", "flotilla workers ls --pool qwen --json")
def ls(
    session: Session,
    pool: Annotated[str | None, typer.Option(help="Only those of this pool.")] = None,
) -> None:
    """List the workers, the unhealthy ones first, and what is wrong with them."""
    overview = session.client.get("/admin/overview")
    workers = [each for each in overview["workers"] if pool in (None, each["pool"])]
    wrong = [each for each in overview["verdict"]["problems"] if each.get("worker")]
    body = {"object": "list", "data": workers, "problems": wrong}
    session.show(body, lambda body: _page(body["data"], body["problems"]))


@gateway_command(
    app, "drain", "flotilla workers drain w-3", "flotilla workers drain w-3 --wait 120"
)
def drain(
    session: Session,
    workers: Annotated[list[str], typer.Argument(metavar="WORKER", autocompletion=worker_ids)],
    wait: Annotated[float, typer.Option(min=0, help="Wait so many seconds for their end.")] = 0.0,
    reason: Reason = "",
) -> ExitCode:
    """Drain workers: they claim nothing more, hand their jobs over, and end."""
    given = {"reason": reason} if reason else {}
    for worker in workers:
        done = session.client.post(
            f"/admin/workers/{quote(worker)}/drain", given, wait_s=OPERATION_S
        )
        if session.as_json:
            session.line(done)
        else:
            print(f"{worker}: draining")
    if wait:
        _await_end(session, set(workers), wait)
    return ExitCode.OK


def _await_end(session: Session, workers: set[str], wait_s: float) -> None:
    until = time.monotonic() + wait_s
    session.on_interrupt = f"{', '.join(sorted(workers))} go on draining."
    while workers:
        seen = session.client.get("/admin/overview")["workers"]
        workers &= {each["id"] for each in seen if not each["lost"]}
        if workers and time.monotonic() > until:
            raise CommandError(
                f"not ended within {wait_s:g} s: {', '.join(sorted(workers))}", ExitCode.TIMED_OUT
            )
        if workers:
            time.sleep(_POLL_S)
    note("all have ended")


def worker_table(workers: Iterable[Mapping[str, Any]]) -> Table:
    """The workers, the unhealthy ones first."""
    columns = (
        "WORKER", "STATE", "SLOTS", "BUSY>", "KV>", "TOK/S>", "HEARTBEAT>", "POOL", "ENGINE",
        "DOING",
    )  # fmt: skip
    return table(columns, map(_row, sorted(workers, key=_urgency)))


def _urgency(worker: Mapping[str, Any]) -> tuple[bool, bool, str, str]:
    """The unhealthy ones first."""
    healthy = worker["state"] in ("ready", "busy")
    return (not worker["lost"], healthy, worker["pool"], worker["id"])


def _row(worker: Mapping[str, Any]) -> Sequence[Any]:
    kv = worker.get("kv_use")
    doing = [worker.get("phase") or worker.get("reason"), duration(worker.get("phase_s"))]
    return (
        worker["id"],
        state(worker["state"]),
        _bar(worker["busy"], worker["slots"], lost=worker["lost"]),
        f"{worker['busy']}/{worker['slots']}",
        "" if kv is None else f"{kv:.0%}",
        figure(worker.get("output_tokens_per_s")),
        duration(worker.get("heartbeat_age_s")),
        worker["pool"],
        worker["engine"],
        " ".join(filter(None, doing)),
    )


def _bar(busy: int, slots: int, *, lost: bool = False) -> str:
    """One cell per slot, or as many as there is room for: `|##....|`."""
    cells = max(1, min(slots, _BAR))
    filled = min(cells, -(-busy * cells // max(1, slots)))
    inside = "x" * cells if lost else "#" * filled + "." * (cells - filled)
    return f"|{inside}|"


def _page(workers: Sequence[Any], problems: Sequence[Any]) -> RenderableType:
    lines = [level(each["level"], f"{each['sentence']} {each['do']}") for each in problems]
    return Group(*lines, worker_table(workers) if workers else Text("There is no worker."))
