"""`flotilla usage`: who used what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from gateway.cli.command import Session, gateway_command
from gateway.cli.completion import key_ids, model_names
from gateway.cli.limits_text import limits_text
from gateway.cli.output import figure, table

app = typer.Typer()
_COLUMNS = ("day", "tenant", "key", "model")
_FIGURES = ("jobs", "input_tokens", "input_cached_tokens", "output_tokens")


@gateway_command(
    app,
    "usage",
    "flotilla usage --by tenant,model --days 7",
    "flotilla usage --by day,key --tenant team --csv > usage.csv",
)
def usage(
    session: Session,
    days: Annotated[int, typer.Option(min=1, max=400, help="So many, up to today (UTC).")] = 30,
    by: Annotated[
        str | None,
        typer.Option(help="Columns: day, tenant, key, model. Else tenant; with --own day,model."),
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Only its use.")] = None,
    key: Annotated[
        str | None, typer.Option(help="Only that of this key.", autocompletion=key_ids)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Only that of this model.", autocompletion=model_names)
    ] = None,
    own: Annotated[
        bool, typer.Option("--own", help="That of the key's own tenant; needs no operator's key.")
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print it as CSV.")] = False,
) -> None:
    """Show what tenants, keys and models have used: jobs, tokens, seconds with a worker."""
    first = datetime.now(UTC).date() - timedelta(days=days - 1)
    path = "/v1/usage" if own else "/admin/usage"
    query: dict[str, Any] = {
        "from": first.isoformat(),
        "by": by or ("day,model" if own else "tenant"),
        "key": key,
        "model": model,
        "tenant": tenant,
    }
    params = {name: value for name, value in query.items() if value is not None}
    if as_csv:
        answer = session.client.send("GET", path, params=params | {"format": "csv"})
        print(answer.text.replace("\r\n", "\n"), end="")
    else:
        session.show(session.client.get(path, **params), _page)


def _page(body: Mapping[str, Any]) -> RenderableType:
    """The table; below it, with `--own`, the limits that hold for the caller."""
    limits = [
        Text(f"this {whose}: {limits_text(of['limits'], of['used'])}")
        for whose, of in (body.get("limits") or {}).items()
        if of
    ]
    return Group(_table(body), *limits)


def _table(body: Mapping[str, Any]) -> RenderableType:
    columns = (
        *(each.upper() for each in body["by"]),
        "JOBS>", "INPUT TOKENS>", "CACHED>", "OUTPUT TOKENS>", "QUEUED>", "RUN>", "WASTED>",
    )  # fmt: skip
    rows = [_row(each, [each[name] for name in body["by"]]) for each in body["data"]]
    total = ["total", *[""] * (len(body["by"]) - 1)] if body["by"] else []
    return table(columns, [*rows, _row(body["total"], total)])


def _row(figures: Mapping[str, Any], first: Sequence[str]) -> Sequence[Any]:
    return (
        *first,
        *(figure(figures[name]) for name in _FIGURES),
        *(f"{figures[name]:,.1f} s" for name in ("queue_s", "engine_s", "wasted_s")),
    )
