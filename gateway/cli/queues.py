"""`flotilla queue`: what waits in each pool; stop the pools' workers from claiming, and go on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import RenderableType
from rich.text import Text

from gateway.cli.command import Session, gateway_command
from gateway.cli.completion import pool_names
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.options import Reason
from gateway.cli.output import duration, note, table

OPERATION_S = 150.0
"""Longer than a gateway waits for all workers of a pool (FLOTILLA_OPERATION_TIMEOUT_S, 120 s)."""

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


@gateway_command(
    app,
    "pause",
    "flotilla queue pause qwen --reason 'bad weights'",
    "flotilla queue pause qwen --intake",
)
def pause(
    session: Session,
    pool: PoolName = None,
    intake: Annotated[
        bool, typer.Option("--intake", help="Refuse new requests instead, with 503.")
    ] = False,
    reason: Reason = "",
) -> None:
    """Stop the pool's workers from claiming jobs: new ones wait, those that run go on.

    With --intake gateways refuse new requests; waiting and running jobs go on.
    """
    _operate(session, pool, "pause", {"intake": True} if intake else {}, reason)
    if not session.as_json:
        effect = "New requests are refused" if intake else "New requests wait in the queue"
        note(f"{effect}, until `flotilla queue resume`.")


@gateway_command(app, "resume", "flotilla queue resume", "flotilla queue resume qwen --json")
def resume(session: Session, pool: PoolName = None, reason: Reason = "") -> None:
    """End `pause`: the pool's workers claim jobs, and gateways accept new requests."""
    _operate(session, pool, "resume", {}, reason)


def _operate(
    session: Session, pool: str | None, action: str, options: Mapping[str, Any], reason: str
) -> None:
    name = pool or _only_pool(session)
    given = {**options, **({"reason": reason} if reason else {})}
    body = session.client.post(f"/admin/pools/{quote(name)}/{action}", given, wait_s=OPERATION_S)
    session.show(body, lambda body: f"{body['pool']}: {action} {body['outcome']}")


def _only_pool(session: Session) -> str:
    pools = [each["id"] for each in session.client.get("/admin/pools")["data"]]
    if len(pools) != 1:
        names = ", ".join(pools) or "none; start a worker"
        raise CommandError(f"name a pool: {names}", ExitCode.USAGE)
    return str(pools[0])


def pool_table(pools: Iterable[Mapping[str, Any]]) -> RenderableType:
    """The pools with their queues."""
    columns = (
        "POOL", "MODELS", "STATE", "WAITING>", "LANES", "OLDEST>", "NEW JOB WAITS>", "RUNNING>",
        "WORKERS>",
    )  # fmt: skip
    return table(columns, map(_row, pools))


def _row(pool: Mapping[str, Any]) -> Sequence[Any]:
    lanes = [f"{each['lane']} {each['waiting']}" for each in pool["lanes"] if each["waiting"]]
    estimate = pool.get("estimated_wait_s")
    return (
        pool["pool"],
        ", ".join(pool["models"]),
        _switches(pool),
        pool["waiting"],
        ", ".join(lanes),
        duration(pool.get("oldest_wait_s")) if pool["waiting"] else "",
        "not known" if estimate is None else duration(estimate),
        f"{pool['running']}/{pool['slots']}",
        pool["workers_ready"],
    )


def _switches(pool: Mapping[str, Any]) -> Text:
    """`open`, or what operators have stopped."""
    stopped = [
        text
        for key, text in (("paused", "PAUSED"), ("intake_stopped", "INTAKE STOPPED"))
        if pool.get(key)
    ]
    return Text(", ".join(stopped) or "open", "yellow" if stopped else "")
