"""`flotilla batch run`: check, upload, run, fetch; the same command goes on after Ctrl-C."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.batch.batch_input import BatchInput, Checked
from gateway.cli.batch.batch_progress import Display, exit_code, follow_batch, summary
from gateway.cli.batch.batch_results import fetch_run
from gateway.cli.batch.file_upload import PART_BYTES, UploadSource, upload
from gateway.cli.batch.line_index import LineIndex
from gateway.cli.batch.run_state import RunState, errors_path, input_key, opened
from gateway.cli.command import Session, gateway_command
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.options import Model
from gateway.cli.output import count, figure, note

app = typer.Typer()

WindowOption = Annotated[
    str,
    typer.Option(metavar="TIME", help="Lines that have not ended then are given up: 1h to 30d."),
]


@gateway_command(
    app,
    "run",
    "flotilla batch run in.jsonl -o out.jsonl",
    "flotilla batch run in.jsonl -o out.jsonl --retry-failed --in-order",
)
def run(
    session: Session,
    path: Annotated[Path, typer.Argument(metavar="INPUT", help="One request on each line.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where the answers go, one on each line.")
    ] = None,
    endpoint: Annotated[
        str, typer.Option(help="For lines that are only a body; else that of the lines.")
    ] = "",
    model: Model = None,
    window: WindowOption = "24h",
    in_order: Annotated[
        bool, typer.Option("--in-order", help="Sort the answers as the requests are.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run the failed lines of the last run again.")
    ] = False,
    check_only: Annotated[
        bool, typer.Option(help="Only check the input, without a gateway.")
    ] = False,
    detach: Annotated[bool, typer.Option(help="Do not wait for the end.")] = False,
) -> ExitCode:
    """Run a file of requests as a batch. Ctrl-C detaches, the same command attaches again.

    A line is {"custom_id", "method", "url", "body"}, or only the body. Failed lines go to
    OUTPUT.errors.jsonl, and the exit code is 7 then.
    """
    if not path.is_file():
        raise CommandError(f"{path} is no file", ExitCode.USAGE)
    source = BatchInput(path, endpoint, model or "")
    if check_only:
        return _show_check(session, _checked(source))
    if output is None:
        raise CommandError("name a file for the answers with -o", ExitCode.USAGE)
    with opened(output, input_key(path, endpoint, model or "")) as state:
        if state.batch is not None and state.batch["request_counts"]["failed"] and retry_failed:
            state.begin_retry(output)
        if state.batch is None:
            _submit(session, state, source, output, window)
            if detach:
                return _detached(session, state)
            _await_results(session, state, output, source if in_order else None)
        batch = state.batch
        assert batch is not None
        if not batch["request_counts"]["total"]:
            state.remove()  # nothing has run: once the input is repaired, it begins anew
    session.show(batch, summary)
    return exit_code(batch)


def _checked(source: BatchInput) -> Checked:
    """The check of an input without errors. Raises CommandError."""
    checked = source.check(PART_BYTES)
    if checked.errors:
        lines = [
            f"  line {each.line or '-'}: {each.code}: {each.message}" for each in checked.errors
        ]
        raise CommandError("\n".join([f"{source.path} can't be a batch:", *lines]), ExitCode.USAGE)
    return checked


def _show_check(session: Session, checked: Checked) -> ExitCode:
    body = {"lines": checked.lines, "bytes": checked.bytes, "endpoint": checked.endpoint}
    session.show(
        body,
        lambda _: (
            f"{count(checked.lines, 'line')} for {checked.endpoint}, {figure(checked.bytes)} bytes"
        ),
    )
    return ExitCode.OK


def _detached(session: Session, state: RunState) -> ExitCode:
    session.show({"id": state.batch_id}, lambda _: state.batch_id)
    if not session.as_json:
        note("it runs; the same command without --detach waits for it and fetches the answers")
    return ExitCode.OK


def _submit(
    session: Session, state: RunState, source: BatchInput, output: Path, window: str
) -> None:
    """Upload the input and make the batch, as far as an earlier run has not done so."""
    if state.batch_id:
        return
    session.on_interrupt = "The same command goes on with the upload."
    if not state.file_id:
        with _lines_to_run(state, source, output) as chosen:
            checked = _checked(chosen)
            state.endpoint = checked.endpoint
            state.file_id = _uploaded(session, state, chosen, checked)
        state.save()
    else:
        state.batch_id = _made_before(session, state.file_id)
    if not state.batch_id:
        request = {
            "input_file_id": state.file_id,
            "endpoint": state.endpoint,
            "completion_window": window,
        }
        state.batch_id = session.client.post("/v1/batches", request)["id"]
    state.save()


@contextlib.contextmanager
def _lines_to_run(state: RunState, source: BatchInput, output: Path) -> Iterator[BatchInput]:
    """The input: all of it, or the lines that have failed."""
    if not state.is_retry:
        yield source
        return
    with LineIndex.of(errors_path(output)) as failed:
        yield source.only(failed.__contains__)


def _uploaded(session: Session, state: RunState, source: BatchInput, checked: Checked) -> str:
    """The id of the file that the input has become."""
    display = Display(session)

    def progress(n_bytes: int) -> None:
        text = f"uploaded {figure(n_bytes)} of {figure(checked.bytes)} bytes"
        display.draw(n_bytes / checked.bytes, text)

    what = UploadSource(
        filename=source.path.name,
        purpose="batch",
        n_bytes=checked.bytes,
        part=lambda number, n_bytes: source.part(checked.marks[number], n_bytes),
        progress=progress,
    )
    try:
        return upload(session.client, what, state.upload, state.save)
    finally:
        display.end()


def _made_before(session: Session, file_id: str) -> str:
    """The batch of a file that an earlier run has uploaded, if it has also made the batch."""
    batches: list[dict[str, Any]] = session.client.get("/v1/batches", limit=100)["data"]
    return next((str(each["id"]) for each in batches if each["input_file_id"] == file_id), "")


def _await_results(
    session: Session, state: RunState, output: Path, ordered_like: BatchInput | None
) -> None:
    """Follow the batch, and fetch its results."""
    session.on_interrupt = (
        f"{state.batch_id} goes on; the same command attaches again, "
        f"`flotilla batch cancel {state.batch_id}` ends it."
    )
    if not session.as_json:
        note(state.batch_id)
    batch = follow_batch(session, state.batch_id)
    fetch_run(session.client, state, batch, output, ordered_like)
