"""`flotilla webhook`: endpoints that are called when jobs, responses and batches end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.table import Table

from gateway.cli.command import Session, gateway_command
from gateway.cli.completion import event_types, webhook_ids
from gateway.cli.exit_codes import ExitCode
from gateway.cli.output import duration, note, since, state, table

app = typer.Typer(
    help="Webhooks: who is called when a job, response or batch ends.", no_args_is_help=True
)

_PATH = "/v1/webhook_endpoints"
EndpointId = Annotated[
    str, typer.Argument(metavar="ENDPOINT", help="An endpoint's id.", autocompletion=webhook_ids)
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=100, help="At most so many.")]


@gateway_command(app, "ls", "flotilla webhook ls", "flotilla webhook ls --json")
def ls(session: Session, limit: Limit = 20) -> None:
    """List endpoints, newest first."""
    body = session.client.get(_PATH, limit=limit)
    session.show(body, lambda body: _endpoints(body["data"]))
    if not body["data"] and not session.as_json:
        note("no webhook endpoint")


def _endpoints(found: Sequence[dict[str, Any]]) -> Table:
    rows = [
        (
            each["id"],
            each["name"],
            since(each["created_at"]),
            each["disabled"] or "",
            each["url"],
            " ".join(each["event_types"]),
        )
        for each in found
    ]
    return table(("ENDPOINT", "NAME", "AGE>", "DISABLED", "URL", "EVENTS"), rows)


@gateway_command(
    app,
    "create",
    "flotilla webhook create https://example.com/hook",
    "flotilla webhook create https://example.com/hook --name ci --event batch.completed",
)
def create(
    session: Session,
    target: Annotated[str, typer.Argument(metavar="URL", help="What is called: https.")],
    name: Annotated[str, typer.Option(help="Its name; else the host of the URL.")] = "",
    event: Annotated[
        list[str] | None,
        typer.Option(help="An event to send; several times; else all.", autocompletion=event_types),
    ] = None,
) -> None:
    """Have events sent to a URL. Prints its id and its secret, which is shown only now."""
    sent = {
        "name": name or urlsplit(target).netloc or target,
        "url": target,
        "event_types": event or session.client.get("/v1/webhook_event_types")["data"],
    }
    session.show(session.client.post(_PATH, sent), _secret)


def _secret(endpoint: dict[str, Any]) -> str:
    return f"{endpoint['id']}\n{endpoint['signing_secret']}"


@gateway_command(
    app,
    "test",
    "flotilla webhook test we_1a2b",
    "flotilla webhook test we_1a2b --event batch.failed",
)
def send_test(
    session: Session,
    endpoint: EndpointId,
    event: Annotated[
        str, typer.Option(help="The event to send.", autocompletion=event_types)
    ] = "job.completed",
) -> ExitCode:
    """Send an event of something that does not exist, once; fails unless the answer is 2xx."""
    body = session.client.post(f"{_PATH}/{endpoint}/test", {"event_type": event})
    session.show(body, lambda body: f"{body['event_type']}: answered {body['status_code']}")
    return ExitCode.OK if 200 <= body["status_code"] < 300 else ExitCode.FAILED


@gateway_command(
    app, "log", "flotilla webhook log we_1a2b", "flotilla webhook log we_1a2b -n 100 --json"
)
def log(session: Session, endpoint: EndpointId, limit: Limit = 20) -> None:
    """List what was sent to an endpoint: what has not arrived yet, then the latest others."""
    body = session.client.get(f"{_PATH}/{endpoint}/deliveries", limit=limit)
    session.show(body, lambda body: _deliveries(body["data"]))
    if not body["data"] and not session.as_json:
        note("no delivery")


def _deliveries(found: Sequence[dict[str, Any]]) -> Table:
    columns = ("DELIVERY", "STATE", "EVENT", "OF", "AGE>", "TRIES>", "LAST ANSWER", "NEXT TRY>")
    rows = [
        (
            each["id"],
            state(each["state"]),
            each["event_type"],
            each["subject"],
            since(each["created_at"]),
            len(each["tries"]),
            _answer(each["tries"]),
            _next(each["next_try_at"]),
        )
        for each in found
    ]
    return table(columns, rows)


def _answer(tries: Sequence[dict[str, Any]]) -> str:
    """What became of the last try."""
    if not tries:
        return ""
    last = tries[-1]
    return f"{last['status_code'] or last['error']} after {duration(last['duration_ms'] / 1000)}"


def _next(at: float | None) -> str:
    return "" if at is None else f"in {since(time.time(), at)}"


@gateway_command(
    app,
    "resend",
    "flotilla webhook resend we_1a2b wh_3c4d",
    "flotilla webhook resend we_1a2b wh_3c4d --json",
)
def resend(
    session: Session,
    endpoint: EndpointId,
    delivery: Annotated[
        str, typer.Argument(metavar="DELIVERY", help="Its id, from `flotilla webhook log`.")
    ],
) -> None:
    """Send an event again, with the same id."""
    body = session.client.post(f"{_PATH}/{endpoint}/deliveries/{delivery}/resend")
    session.show(body, lambda body: f"{body['id']}: {body['state']}")


@gateway_command(
    app,
    "rotate",
    "flotilla webhook rotate we_1a2b",
    "flotilla webhook rotate we_1a2b --keep-old",
)
def rotate(
    session: Session,
    endpoint: EndpointId,
    keep_old: Annotated[
        bool, typer.Option("--keep-old", help="Sign with the old secret, too, for 24 hours.")
    ] = False,
) -> None:
    """Replace the secret of an endpoint. Prints its id and the new one, which is shown only now."""
    sent = {"keep_old_secret_active_for_24_hours": keep_old}
    session.show(session.client.post(f"{_PATH}/{endpoint}/rotate_secret", sent), _secret)


@gateway_command(app, "rm", "flotilla webhook rm we_1a2b", "flotilla webhook rm we_1a2b --json")
def rm(session: Session, endpoint: EndpointId) -> None:
    """Delete an endpoint; what has not arrived is not sent any more."""
    body = session.client.send("DELETE", f"{_PATH}/{endpoint}").json()
    session.show(body, lambda body: f"{body['id']}: deleted")
