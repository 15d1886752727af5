"""`flotilla scale`: how many workers there are and should be, and why; set the range."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import RenderableType
from rich.text import Text

from gateway.cli.command import Session, gateway_command
from gateway.cli.completion import model_names
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.output import note

app = typer.Typer(
    help="The autoscaler: explain its decisions, set its range.", no_args_is_help=True
)
_SHOWN = 10
_NO_AUTOSCALER = (
    "No autoscaler decides for this fleet: start it with `flotilla up --autoscale MIN:MAX`, or set "
    "FLOTILLA_AUTOSCALE for the maintenance process."
)

Name = Annotated[str, typer.Argument(metavar="MODEL", autocompletion=model_names)]


@gateway_command(app, "explain", "flotilla scale explain", "flotilla scale explain qwen --json")
def explain(
    session: Session,
    name: Annotated[
        str | None,
        typer.Argument(help="A model or a pool; without it all.", autocompletion=model_names),
    ] = None,
) -> None:
    """Print how many workers there are, how many there should be, and why."""
    pools = session.client.get("/admin/autoscale")["data"]
    if name is not None:
        known = [pool for pool in pools if name in (pool["pool"], pool["model"])]
        if not known:
            # The route finds a pool by all names of its models; else its error ends the command.
            pool = session.client.get(f"/autoscale/{quote(name)}")["pool"]
            known = [each for each in pools if each["pool"] == pool]
        pools = known
    session.show({"object": "list", "data": pools}, lambda body: _page(body["data"]))


@gateway_command(
    app, "set", "flotilla scale set qwen3-8b --min 2 --max 6", "flotilla scale set qwen3-8b --min 0"
)
def set_range(
    session: Session,
    model: Name,
    least: Annotated[int | None, typer.Option("--min", min=0, help="Fewest workers.")] = None,
    most: Annotated[int | None, typer.Option("--max", min=1, help="Most workers.")] = None,
) -> None:
    """Set between how many workers the autoscaler chooses, until it is set anew."""
    if least is None and most is None:
        raise CommandError("give --min, --max or both", ExitCode.USAGE)
    query = {"min": least, "max": most}
    params = {key: value for key, value in query.items() if value is not None}
    done = session.client.send("PUT", f"/admin/autoscale/{quote(model)}", params=params).json()
    session.show(done, lambda body: f"{body['pool']}: {body['min']} to {body['max']} workers")
    note("`flotilla scale explain` shows what follows.")


def _page(pools: Sequence[Any]) -> RenderableType:
    return Text("\n\n".join(map(text, pools)) if pools else _NO_AUTOSCALER)


def text(pool: dict[str, Any]) -> str:
    """One pool of GET /admin/autoscale as text."""
    seen, limits = pool["inputs"], pool["limits"]
    lines = [
        f"{pool['model']} (pool {pool['pool']})",
        "",
        f"  wanted   {_workers(pool['wanted'])}, of {limits['min']} to {limits['max']}",
        f"  actual   {_states(pool['workers'])}",
        f"  because  {pool['reason']}",
        f"  decided  {pool['age_s']:.0f} s ago",
    ]
    if pool["silent"]:
        lines.append("  THE AUTOSCALER HAS STOPPED: this decision is out of date")
    lines += ["", "  what it observed", *(f"    {line}" for line in _inputs(seen))]
    history = pool["history"][:_SHOWN]
    if history:
        lines += ["", "  its changes, newest first", *map(_change, history)]
    return "\n".join(lines)


def _inputs(seen: dict[str, Any]) -> Sequence[str]:
    waits = f", the oldest for {seen['oldest_s']:.1f} s" if seen["waiting"] else ""
    each = {
        "jobs at once a worker": seen["slots"],
        "s a job": seen["job_s"] and _figure(seen["job_s"]),
        "s a worker's start": seen["start_s"] and _figure(seen["start_s"]),
    }
    known = [f"{value} {what}" for what, value in each.items() if value is not None]
    return (
        f"{_jobs(seen['waiting'])} waiting{waits}; {_jobs(seen['running'])} running",
        f"{_workers(seen['ready'])} ready, {seen['starting']} starting, "
        f"{seen['draining']} draining",
        *((", ".join(known),) if known else ()),
    )


def _change(entry: dict[str, Any]) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["at_s"]))
    before = "   " if entry["before"] is None else f"{entry['before']:>3}"
    return f"    {when}  {before} -> {entry['wanted']:<3} {entry['reason']}"


def _states(workers: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(workers.items())) or "none"


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
