"""`flotilla files`: the files of batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from gateway.cli.batch.batch_progress import Display
from gateway.cli.batch.batch_results import download
from gateway.cli.batch.file_upload import UploadSource, upload
from gateway.cli.command import Session, gateway_command
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.output import figure, note, since, table

app = typer.Typer(help="Files: inputs and outputs of batches.", no_args_is_help=True)

FileId = Annotated[str, typer.Argument(metavar="FILE", help="A file's id.")]
_CHUNK_BYTES = 1 << 18


@gateway_command(app, "ls", "flotilla files ls", "flotilla files ls --purpose batch_output -n 50")
def ls(
    session: Session,
    purpose: Annotated[
        str | None, typer.Option(help="Only those: batch, user_data, batch_output.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most so many.")
    ] = 20,
) -> None:
    """List files, newest first."""
    body = session.client.get("/v1/files", purpose=purpose, limit=limit)
    session.show(body, lambda body: _table(body["data"]))
    if not body["data"] and not session.as_json:
        note("no file")


def _table(files: list[dict[str, Any]]) -> Table:
    rows = [
        (
            file["id"],
            file["purpose"],
            figure(file["bytes"]),
            since(file["created_at"]),
            file["filename"],
        )
        for file in files
    ]
    return table(("FILE", "PURPOSE", "BYTES>", "AGE>", "NAME"), rows)


@gateway_command(
    app,
    "get",
    "flotilla files get file-1a2b -o in.jsonl",
    "flotilla files get file-1a2b -o in.jsonl --json",
)
def get(
    session: Session,
    file: FileId,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where its content goes.")],
) -> None:
    """Fetch the content of a file."""
    if output.exists():
        raise CommandError(f"{output} exists", ExitCode.USAGE)
    found = session.client.get(f"/v1/files/{file}")
    download(session.client, file, output)
    session.show(found, lambda body: f"{output}: {figure(body['bytes'])} bytes")


@gateway_command(app, "rm", "flotilla files rm file-1a2b", "flotilla files rm file-1a2b --json")
def rm(session: Session, file: FileId) -> None:
    """Delete a file."""
    answer = session.client.send("DELETE", f"/v1/files/{file}").json()
    session.show(answer, lambda body: f"{body['id']}: deleted")


@gateway_command(
    app, "put", "flotilla files put in.jsonl", "flotilla files put notes.txt --purpose user_data"
)
def put(
    session: Session,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The file.")],
    purpose: Annotated[str, typer.Option(help="batch or user_data.")] = "batch",
) -> None:
    """Upload a file as it is, and print its id."""
    if not path.is_file():
        raise CommandError(f"{path} is no file", ExitCode.USAGE)
    size = path.stat().st_size
    display = Display(session)

    def data() -> Iterator[bytes]:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk

    what = UploadSource(
        filename=path.name,
        purpose=purpose,
        n_bytes=size,
        data=data,
        progress=lambda done: display.draw(done / max(size, 1), f"{figure(done)} bytes"),
    )
    try:
        file_id = upload(session.client, what)
    finally:
        display.end()
    session.show(session.client.get(f"/v1/files/{file_id}"), lambda body: str(body["id"]))
