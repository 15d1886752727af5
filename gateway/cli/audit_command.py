"""`flotilla audit`: what operators have changed, by whom and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from gateway.cli.command import Session, gateway_command
from gateway.cli.output import note, since, table

_PAGE = 1000


app = typer.Typer()


@gateway_command(app, "audit", "flotilla audit", "flotilla audit -n 100 --json")
def audit(
    session: Session,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=_PAGE)] = 20,
) -> None:
    """List what operators have changed, newest first: keys, limits, pools, many jobs at once."""
    body = session.client.get("/admin/audit", limit=limit)
    session.show(body, lambda body: _table(body["data"]))
    if not session.as_json and (body["has_more"] or not body["data"]):
        note("there are more: --limit" if body["has_more"] else "nothing was changed")


def _table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    columns = "AGE>", "ACTION", "SUBJECT", "BY", "KEY", "REASON"
    return table(columns, map(_row, rows))


def _row(row: Mapping[str, Any]) -> Sequence[Any]:
    key = row["key"] or "of the settings"
    return since(row["at"]), row["action"], row["subject"], row["tenant"], key, row["reason"]
