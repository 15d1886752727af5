"""`flotilla queue`: what waits in each pool; stop the pools' workers from claiming, and go on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from gateway.cli.command import Session, gateway_command
from gateway.cli.completion import pool_names
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.output import count, duration, note, table

app = typer.Typer(help="Queues of the pools: list, pause, resume.", no_args_is_help=True)

PoolName = Annotated[
    str | None,
    typer.Argument(
        metavar="POOL",
        help="A pool or one of its models; without it the only one.",
        autocompletion=pool_names,
    ),
]


@gateway_command(app, "ls", "flotilla queue ls", "flotilla queue ls --json")
def ls(session: Session) -> None:
    """List the pools: what waits, what runs, how long a new job would wait."""
    pools = session.client.get("/admin/overview")["pools"]
    session.show({"object": "list", "data": pools}, lambda body: pool_table(body["data"]))


@gateway_command(app, "pause", "flotilla queue pause", "flotilla queue pause qwen --json")
def pause(session: Session, pool: PoolName = None) -> None:
    """Stop intake: the pool's workers claim no more jobs; those that run go on.

    New requests wait in the queue until `flotilla queue resume`.
    """
    _operate(session, pool, "pause")


@gateway_command(app, "resume", "flotilla queue resume", "flotilla queue resume qwen --json")
def resume(session: Session, pool: PoolName = None) -> None:
    """Let the pool's workers claim jobs again."""
    _operate(session, pool, "resume")


def _operate(session: Session, pool: str | None, action: str) -> None:
    name = pool or _only_pool(session)
    body = session.client.post(f"/admin/pools/{name}/{action}")
    done = {"pause": "paused", "resume": "resumed"}[action]
    session.show(
        body, lambda body: f"{body['pool']}: {done}, {count(len(body['workers']), 'worker')}"
    )
    if action == "pause":
        note("New requests wait in the queue; `flotilla queue resume` lets workers claim again.")


def _only_pool(session: Session) -> str:
    pools = [each["id"] for each in session.client.get("/admin/pools")["data"]]
    if len(pools) != 1:
        names = ", ".join(pools) or "none; start a worker"
        raise CommandError(f"name a pool: {names}", ExitCode.USAGE)
    return str(pools[0])


def pool_table(pools: Iterable[Mapping[str, Any]]) -> RenderableType:
    """The pools with their queues."""
    columns = (
        "POOL", "MODELS", "CLAIMS", "WAITING>", "LANES", "OLDEST>", "NEW JOB WAITS>", "RUNNING>",
        "WORKERS>",
    )  # fmt: skip
    return table(columns, map(_row, pools))


def _row(pool: Mapping[str, Any]) -> Sequence[Any]:
    lanes = [f"{each['lane']} {each['waiting']}" for each in pool["lanes"] if each["waiting"]]
    estimate = pool.get("estimated_wait_s")
    return (
        pool["pool"],
        ", ".join(pool["models"]),
        "PAUSED" if pool["paused"] else "yes",
        pool["waiting"],
        ", ".join(lanes),
        duration(pool.get("oldest_wait_s")) if pool["waiting"] else "",
        "not known" if estimate is None else duration(estimate),
        f"{pool['running']}/{pool['slots']}",
        pool["workers_ready"],
    )
