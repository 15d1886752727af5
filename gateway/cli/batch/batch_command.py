"""`flotilla batch`: make, list, look at, follow and cancel batches, and fetch their files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from gateway.cli.batch import run_command
from gateway.cli.batch.batch_input import CHAT
from gateway.cli.batch.batch_progress import ENDED, exit_code, follow_batch, summary
from gateway.cli.batch.batch_results import fetch as fetch_files
from gateway.cli.batch.run_command import WindowOption
from gateway.cli.batch.run_state import errors_path
from gateway.cli.command import Session, gateway_command
from gateway.cli.completion import batch_ids
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.options import Pairs, parse_pairs
from gateway.cli.output import note, since, state, table

app = typer.Typer(help="Batches: files of requests that run beside chat.", no_args_is_help=True)
app.add_typer(run_command.app)

BatchId = Annotated[
    str, typer.Argument(metavar="BATCH", help="A batch's id.", autocompletion=batch_ids)
]


@gateway_command(
    app,
    "create",
    "flotilla batch create file-1a2b",
    "flotilla batch create file-1a2b --endpoint /v1/embeddings --window 7d --meta team=search",
)
def create(
    session: Session,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The id of an uploaded file.")],
    endpoint: Annotated[str, typer.Option(help="Which endpoint answers the lines.")] = CHAT,
    window: WindowOption = "24h",
    meta: Pairs = None,
) -> None:
    """Run an uploaded file as a batch, and print its id."""
    request: dict[str, Any] = {
        "input_file_id": file,
        "endpoint": endpoint,
        "completion_window": window,
    }
    if meta:
        request["metadata"] = parse_pairs(meta)
    session.show(session.client.post("/v1/batches", request), lambda body: str(body["id"]))


@gateway_command(app, "ls", "flotilla batch ls", "flotilla batch ls -n 50 --json")
def ls(
    session: Session,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=100, help="At most so many.")
    ] = 20,
) -> None:
    """List batches, newest first."""
    body = session.client.get("/v1/batches", limit=limit)
    session.show(body, lambda body: _table(body["data"]))
    if not body["data"] and not session.as_json:
        note("no batch")


def _table(batches: list[dict[str, Any]]) -> Table:
    columns = ("BATCH", "STATUS", "ENDPOINT", "AGE>", "LINES>", "DONE>", "FAILED>")
    rows = []
    for batch in batches:
        counts = batch["request_counts"]
        rows.append(
            (
                batch["id"],
                state(batch["status"]),
                batch["endpoint"],
                since(batch["created_at"]),
                counts["total"],
                counts["completed"],
                counts["failed"],
            )
        )
    return table(columns, rows)


@gateway_command(
    app, "show", "flotilla batch show batch_1a2b", "flotilla batch show batch_1a2b --json"
)
def show(session: Session, batch: BatchId) -> None:
    """Show a batch: its status, counts, tokens, and what is wrong with its input."""
    session.show(session.client.get(f"/v1/batches/{batch}"), _page)


def _page(batch: dict[str, Any]) -> str:
    skipped = ("id", "object", "request_counts", "usage", "errors")
    lines = [
        f"  {name}: {value}"
        for name, value in batch.items()
        if name not in skipped and value is not None
    ]
    return "\n".join([summary(batch), *lines])


@gateway_command(
    app, "follow", "flotilla batch follow batch_1a2b", "flotilla batch follow batch_1a2b --json"
)
def follow(session: Session, batch: BatchId) -> ExitCode:
    """Show how far a batch is, up to its end. Ctrl-C ends this command, not the batch."""
    session.on_interrupt = f"{batch} goes on; `flotilla batch cancel {batch}` ends it."
    ended = follow_batch(session, batch)
    session.show(ended, summary)
    return exit_code(ended)


@gateway_command(
    app, "cancel", "flotilla batch cancel batch_1a2b", "flotilla batch cancel batch_1a2b --json"
)
def cancel(session: Session, batch: BatchId) -> None:
    """Cancel a batch; what has been answered by then is kept."""
    body = session.client.post(f"/v1/batches/{batch}/cancel")
    session.show(body, lambda body: f"{body['id']}: {body['status']}")


@gateway_command(
    app,
    "fetch",
    "flotilla batch fetch batch_1a2b -o out.jsonl",
    "flotilla batch fetch batch_1a2b -o so-far.jsonl --json",
)
def fetch(
    session: Session,
    batch: BatchId,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the answers go.")],
) -> ExitCode:
    """Fetch the answers of a batch so far, and its failed lines (OUTPUT.errors.jsonl)."""
    if output.exists():
        raise CommandError(f"{output} exists", ExitCode.USAGE)
    found = session.client.get(f"/v1/batches/{batch}")
    fetch_files(session.client, found, output)
    session.show(found, lambda body: f"{body['status']}: {output}, {errors_path(output)}")
    return exit_code(found) if found["status"] in ENDED else ExitCode.OK
