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
        f"  wait     {_wait(pool['wait_s'])}",
        f"  decided  {pool['age_s']:.0f} s ago",
    ]
    if pool["silent"]:
        lines.append("  THE AUTOSCALER HAS STOPPED: this decision is out of date")
    lines += ["", "  what it observed", *(f"    {line}" for line in _inputs(seen))]
    lines += ["", "  its limits and aims", *(f"    {line}" for line in _aims(limits))]
    history = pool["history"][:_SHOWN]
    if history:
        lines += ["", "  its changes, newest first", *map(_change, history)]
    return "\n".join(lines)


def _inputs(seen: dict[str, Any]) -> Sequence[str]:
    tokens = seen["waiting_tokens"]
    about = f", about {tokens:.0f} tokens" if tokens else ""
    waits = f", the oldest for {seen['oldest_s']:.1f} s" if seen["waiting"] else ""
    job = "how long a job takes is not known yet"
    if seen["job_s"] is not None:
        job = f"a job takes {_figure(seen['job_s'])} s"
        job += f" and {seen['job_tokens']:.0f} tokens" if seen["job_tokens"] else ""
    start = "how long a worker takes to start is not known yet"
    if seen["start_s"] is not None:
        start = f"a worker takes {_figure(seen['start_s'])} s to start"
    slots = "how many jobs a worker runs at once is not known yet"
    if seen["slots"] is not None:
        slots = f"a worker runs {seen['slots']} jobs at once"
    return (
        f"{_jobs(seen['waiting'])} waiting{about}{waits}; {_jobs(seen['running'])} running",
        f"{_figure(seen['arrivals_per_s'])} jobs a second arrived lately",
        job,
        slots,
        start,
        f"{_workers(seen['ready'])} ready, {seen['starting']} starting or requested, "
        f"{seen['draining']} draining",
    )


def _aims(limits: dict[str, Any]) -> Sequence[str]:
    return (
        f"a job waits at most {limits['target_wait_s']:g} s once its workers have started",
        f"{limits['utilization']:.0%} of the slots are busy in steady load",
        f"a worker is removed when fewer have been enough for {limits['down_after_s']:g} s",
        f"the last one is removed after {limits['idle_s']:g} s without work",
    )


def _change(entry: dict[str, Any]) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["at_s"]))
    before = "   " if entry["before"] is None else f"{entry['before']:>3}"
    return f"    {when}  {before} -> {entry['wanted']:<3} {entry['reason']}"


def _states(workers: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(workers.items())) or "none"


def _wait(seconds: float | None) -> str:
    if seconds is None:
        return "for a job that comes now: not known"
    return f"about {_figure(seconds)} s for a job that comes now" if seconds else "none"


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
