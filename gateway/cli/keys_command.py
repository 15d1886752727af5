"""`flotilla keys`: who may call the fleet, and how much each has used. Never a key itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer
from rich.console import RenderableType
from rich.text import Text
from typer.core import TyperGroup

from gateway.cli.command import Session, gateway_command
from gateway.cli.output import figure, since, table


class _ListByDefault(TyperGroup):
    """`flotilla keys` is `flotilla keys ls`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See click.Command."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["ls", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(help="Who may call the fleet, and what each has used.", cls=_ListByDefault)
_USED = ("requests", "failed", "prompt_tokens", "completion_tokens")


@gateway_command(app, "ls", "flotilla keys ls", "flotilla keys ls --json")
def ls(session: Session) -> None:
    """List the tenants that have API keys, what they may do, and how much they have used."""
    session.show(session.client.get("/admin/keys"), lambda body: _table(body["data"]))


def _table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    if not rows:
        return Text("No keys are configured: everyone who reaches the gateway is an operator.")
    columns = (
        "NAME", "TENANT", "OPERATOR", "KEYS>", "JOBS KEPT>", "LAST JOB>", "REQUESTS>", "FAILED>",
        "PROMPT TOKENS>", "OUTPUT TOKENS>",
    )  # fmt: skip
    return table(columns, map(_row, rows))


def _row(row: Mapping[str, Any]) -> Sequence[Any]:
    used = row.get("usage") or {}
    last = row.get("last_job_at")
    return (
        row["name"],
        row["tenant"],
        "yes" if row.get("operator") else "no",
        row.get("keys", ""),
        row.get("jobs_kept", ""),
        f"{since(last)} ago" if last else "",
        *(figure(used.get(name)) for name in _USED),
    )
