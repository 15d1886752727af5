"""`flotilla keys`: API keys of tenants, and how much each tenant has used."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text
from typer.core import TyperGroup

from gateway.cli.command import Session, gateway_command
from gateway.cli.completion import key_ids, model_names
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.limits_text import LIMITS, limits_text
from gateway.cli.output import figure, note, since, table


class _ListByDefault(TyperGroup):
    """`flotilla keys`, and `flotilla keys list`, is `flotilla keys ls`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See click.Command."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["ls", *args]
        elif args[0] == "list":
            args = ["ls", *args[1:]]
        return super().parse_args(ctx, args)


app = typer.Typer(
    help="API keys: who may call the fleet, and what each has used.", cls=_ListByDefault
)
_PATH = "/admin/keys"
_PAGE = 1000
_DAY_S = 86_400.0
_USED = ("tokens_today", "tokens_this_month")
KeyId = Annotated[str, typer.Argument(metavar="KEY", help="A key's id.", autocompletion=key_ids)]
Reason = Annotated[str, typer.Option(help="Why; for the audit log.")]
Most = Annotated[int, typer.Option(min=0, help="0: no limit.")]
Change = Annotated[
    int | None, typer.Option(min=0, help="0: no limit; not named: as it is.", show_default=False)
]


@gateway_command(app, "ls", "flotilla keys ls", "flotilla keys ls --tenant team --json")
def ls(
    session: Session, tenant: Annotated[str, typer.Option(help="Only those of this one.")] = ""
) -> None:
    """List the keys that were made with `create`; those of the gateway's settings have no id."""
    found = _made(session, tenant)
    session.show({"object": "list", "data": found}, lambda body: _keys(body["data"]))
    if not found and not session.as_json:
        note("no key was made; `flotilla keys tenants` counts those of the settings, too")


def _made(session: Session, tenant: str = "") -> list[dict[str, Any]]:
    """The keys that were made with `create`; `tenant`: only its keys."""
    found: list[dict[str, Any]] = []
    after = None
    while True:
        page = session.client.get(_PATH, tenant=tenant, limit=_PAGE, after=after)
        found += page["data"]
        if not page["has_more"]:
            return found
        after = found[-1]["id"]


@gateway_command(
    app,
    "create",
    "flotilla keys create team",
    "flotilla keys create team --name ci --scope infer --model qwen --days 30",
)
def create(
    session: Session,
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Whose key it is.")],
    name: Annotated[str, typer.Option(help="For people.")] = "",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="infer, jobs, admin:read or admin:write; several times. Else infer and jobs."
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="A model it may use; several times. Else any.", autocompletion=model_names
        ),
    ] = None,
    days: Annotated[
        float | None, typer.Option(min=0.001, help="It expires after so many; else never.")
    ] = None,
    requests_per_minute: Most = 0,
    tokens_per_minute: Most = 0,
    concurrent_requests: Most = 0,
    tokens_per_day: Most = 0,
    tokens_per_month: Most = 0,
    reason: Reason = "",
) -> None:
    """Make a key for a tenant. Prints its id and its secret, which is shown only now."""
    sent: dict[str, Any] = {"tenant": tenant, "name": name, "reason": reason}
    numbers = (
        requests_per_minute, tokens_per_minute, concurrent_requests, tokens_per_day,
        tokens_per_month,
    )  # fmt: skip
    sent |= {"limits": dict(zip(LIMITS, numbers, strict=True))} if any(numbers) else {}
    sent |= {"scopes": scope} if scope else {}
    sent |= {"models": model} if model else {}
    sent |= {"expires_at": time.time() + days * _DAY_S} if days else {}
    session.show(session.client.post(_PATH, sent), _secret)


@gateway_command(
    app,
    "limit",
    "flotilla keys limit key_1a2b --requests-per-minute 60",
    "flotilla keys limit team --tokens-per-month 50000000 --reason contract",
)
def limit(
    session: Session,
    whose: Annotated[
        str, typer.Argument(metavar="KEY|TENANT", help="A key's id, or a tenant: all its keys.")
    ],
    requests_per_minute: Change = None,
    tokens_per_minute: Change = None,
    concurrent_requests: Change = None,
    tokens_per_day: Change = None,
    tokens_per_month: Change = None,
    reason: Reason = "",
) -> None:
    """Set limits of a key, or of a tenant. Those that are not named stay; 0 removes one."""
    numbers = (
        requests_per_minute, tokens_per_minute, concurrent_requests, tokens_per_day,
        tokens_per_month,
    )  # fmt: skip
    named = zip(LIMITS, numbers, strict=True)
    changes = {name: number for name, number in named if number is not None}
    if not changes:
        raise CommandError("name a limit; 0 removes it", ExitCode.USAGE)
    if whose.startswith("key_"):
        path, name, rows = f"{_PATH}/{whose}", "id", _made(session)
    else:
        path, name = f"/admin/tenants/{whose}", "tenant"
        rows = session.client.get("/admin/tenants")["data"]
    before: dict[str, int] = next((row["limits"] for row in rows if row[name] == whose), {})
    sent = {**before, **changes, "reason": reason}
    body = session.client.send("PUT", f"{path}/limits", body=sent).json()
    session.show(body, lambda body: f"{whose}: {limits_text(body['limits'])}")


@gateway_command(
    app, "rotate", "flotilla keys rotate key_1a2b", "flotilla keys rotate key_1a2b --reason leaked"
)
def rotate(session: Session, key: KeyId, reason: Reason = "") -> None:
    """Replace a key's secret. The old one is refused at once, the new one is shown only now."""
    session.show(session.client.post(f"{_PATH}/{key}/rotate", {"reason": reason}), _secret)


@gateway_command(
    app, "revoke", "flotilla keys revoke key_1a2b", "flotilla keys revoke key_1a2b --reason left"
)
def revoke(session: Session, key: KeyId, reason: Reason = "") -> None:
    """Refuse a key from now on; its jobs go on."""
    body = session.client.send("DELETE", f"{_PATH}/{key}", body={"reason": reason}).json()
    session.show(body, lambda body: f"{body['id']}: revoked")


@gateway_command(app, "tenants", "flotilla keys tenants", "flotilla keys tenants --json")
def tenants(session: Session) -> None:
    """List the tenants that have keys, what they may do, and how much they have used."""
    session.show(session.client.get("/admin/tenants"), lambda body: _tenants(body["data"]))


def _secret(key: Mapping[str, Any]) -> str:
    return f"{key['id']}\n{key['secret']}"


def _keys(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    columns = (
        "KEY", "TENANT", "NAME", "BEGINS WITH", "SCOPES", "MODELS", "LIMITS", "AGE>",
        "EXPIRES>",
    )  # fmt: skip
    return table(columns, map(_key, rows))


def _key(row: Mapping[str, Any]) -> Sequence[Any]:
    return (
        row["id"],
        row["tenant"],
        row["name"],
        row["hint"],
        " ".join(row["scopes"]),
        " ".join(row["models"]) or "any",
        limits_text(row.get("limits"), row.get("used")),
        since(row["created_at"]),
        _date(row["expires_at"]),
    )


def _date(at: float | None) -> str:
    """In this machine's time zone."""
    return "never" if at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _tenants(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    if not any(row["keys"] for row in rows):
        return Text("No keys are configured: everyone who reaches the gateway is an operator.")
    columns = (
        "TENANT", "OPERATOR", "KEYS>", "JOBS KEPT>", "LAST JOB>", "TOKENS TODAY>",
        "THIS MONTH>", "LIMITS",
    )  # fmt: skip
    return table(columns, map(_tenant, rows))


def _tenant(row: Mapping[str, Any]) -> Sequence[Any]:
    used = row.get("used") or {}
    last = row.get("last_job_at")
    return (
        row["tenant"],
        "yes" if row["operator"] else "no",
        row["keys"],
        row["jobs_kept"],
        f"{since(last)} ago" if last else "",
        *(figure(used.get(name)) for name in _USED),
        limits_text(row.get("limits"), used),
    )
