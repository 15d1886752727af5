"""`flotilla models`: list the models, remove one that has no workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table

from gateway.cli.command import Session, gateway_command
from gateway.cli.completion import model_names
from gateway.cli.options import Reason
from gateway.cli.output import table

app = typer.Typer(help="Models: list, forget.", no_args_is_help=True)


@gateway_command(app, "ls", "flotilla models ls", "flotilla models ls --json")
def ls(session: Session) -> None:
    """List the models, ready ones first."""
    session.show(session.client.get("/v1/models"), lambda body: _table(body["data"]))


@gateway_command(app, "rm", "flotilla models rm qwen", "flotilla models rm qwen --reason replaced")
def rm(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="MODEL", autocompletion=model_names)],
    reason: Reason = "",
) -> None:
    """Forget a model without workers and jobs; one that is not served for 7 days is forgotten."""
    path = f"/admin/models/{quote(name)}"
    body = session.client.send("DELETE", path, body={"reason": reason}).json()
    session.show(body, lambda body: f"{body['id']}: forgotten")


def _table(models: Sequence[Mapping[str, Any]]) -> Table:
    return table(("MODEL", "POOL", "STATE", "WORKERS>", "SLOTS>"), map(_row, models))


def _row(model: Mapping[str, Any]) -> Sequence[Any]:
    about = model.get("flotilla") or {}
    state = "ready" if about.get("ready") else about.get("wait_reason") or "no worker is ready"
    pool, workers = about.get("pool", ""), about.get("workers_ready", 0)
    return model["id"], pool, state, workers, about.get("slots", 0)
