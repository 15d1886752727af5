"""`flotilla batch run`: check, upload, run, fetch; the same command goes on after Ctrl-C."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from gateway.cli.batch.batch_input import BatchInput, Checked
from gateway.cli.batch.batch_progress import Display, exit_code, follow_batch, summary
from gateway.cli.batch.batch_results import fetch_run
from gateway.cli.batch.file_upload import UploadSource, upload
from gateway.cli.batch.local_run import (
    LONGEST_WINDOW,
    FleetOptions,
    clear,
    local_fleet,
    on_fleet,
)
from gateway.cli.batch.run_state import RunState, errors_path, input_key, opened
from gateway.cli.command import Session, gateway_command
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.gateway_client import Patience
from gateway.cli.options import Model
from gateway.cli.output import count, figure, note

app = typer.Typer()

WindowOption = Annotated[
    str,
    typer.Option(metavar="TIME", help="Lines that have not ended then are given up: 1h to 30d."),
]
Input = Annotated[Path, typer.Argument(metavar="INPUT", help="One request on each line.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Where the answers go, one on each line.")
]
LineEndpoint = Annotated[
    str, typer.Option(help="For lines that are only a body; else that of the lines.")
]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Run the failed lines of the last run again.")
]
CheckOnly = Annotated[bool, typer.Option(help="Only check the input, without a gateway.")]
Detach = Annotated[bool, typer.Option(help="Do not wait for the end.")]
Local = Annotated[
    bool, typer.Option("--local", help="Run them on a fleet of its own, which ends with them.")
]
_PANEL = "The fleet of --local, as for `flotilla up`"
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Number of workers; 1 by default.", rich_help_panel=_PANEL),
]
Engine = Annotated[
    str | None, typer.Option(help="vllm, or simulated (for load tests).", rich_help_panel=_PANEL)
]
EngineArgs = Annotated[
    str | None, typer.Option(help="vLLM's own arguments, as one string.", rich_help_panel=_PANEL)
]


class Options(NamedTuple):
    """What to run, and how."""

    output: Path
    window: str
    retry_failed: bool
    detach: bool


@gateway_command(
    app,
    "run",
    "flotilla batch run in.jsonl -o out.jsonl --retry-failed",
    "flotilla batch run in.jsonl -o out.jsonl --local --model Qwen/Qwen3-0.6B --workers 2",
)
def run(
    session: Session,
    path: Input,
    output: Output = None,
    endpoint: LineEndpoint = "",
    model: Model = None,
    window: WindowOption = "",
    retry_failed: RetryFailed = False,
    check_only: CheckOnly = False,
    detach: Detach = False,
    local: Local = False,
    workers: Workers = None,
    engine: Engine = None,
    engine_args: EngineArgs = None,
) -> ExitCode:
    """Run a file of requests as a batch. Ctrl-C detaches, the same command attaches again.

    A line is {"custom_id", "method", "url", "body"}, or only the body. Failed lines go to
    OUTPUT.errors.jsonl, and the exit code is 7 then.

    With --local no server is needed: the model is a hub id or a folder, and OUTPUT.flotilla has the
    data. Ctrl-C stops it all, the same command goes on.
    """
    if not path.is_file():
        raise CommandError(f"{path} is no file", ExitCode.USAGE)
    source = BatchInput(path, endpoint, model or "")
    if check_only:
        return _show_check(session, _checked(source))
    if output is None:
        raise CommandError("name a file for the answers with -o", ExitCode.USAGE)
    options = Options(output, window or "24h", retry_failed, detach)
    fleet = FleetOptions(model, workers, engine, engine_args)
    if local:
        return _run_local(session, source, options._replace(window=window or LONGEST_WINDOW), fleet)
    if fleet != FleetOptions(model, None, None, None):
        raise CommandError("--workers, --engine and --engine-args need --local", ExitCode.USAGE)
    return _run(session, source, options)


def _run(session: Session, source: BatchInput, options: Options) -> ExitCode:
    """By the gateway of the session."""
    output = options.output
    with opened(output, input_key(source)) as state:
        _begin_retry(state, options)
        if state.batch is None:
            _submit(session, state, source, options)
            if options.detach:
                return _detached(session, state)
            session.on_interrupt = (
                f"{state.batch_id} goes on; the same command attaches again, "
                f"`flotilla batch cancel {state.batch_id}` ends it."
            )
            _await_results(session, state, output)
        return _ended(session, state)


def _run_local(
    session: Session, source: BatchInput, options: Options, fleet_options: FleetOptions
) -> ExitCode:
    """By a fleet of its own."""
    output = options.output
    if options.detach or session.url:
        raise CommandError("--local has no --detach and no --url", ExitCode.USAGE)
    session.on_interrupt = "The same command goes on."
    with opened(output, input_key(source) | {"local": True}) as state:
        _begin_retry(state, options)
        if state.batch is None:
            if not state.file_id:
                _checked(source)  # before a model is loaded for minutes
            fleet = local_fleet(fleet_options, output)
            with on_fleet(session, fleet, state, output):
                if fleet_options.model:
                    source.model = fleet.model
                _submit(session, state, source, options)
                _await_results(session, state, output)
        assert state.batch is not None
        clear(output, keep_logs=state.batch["request_counts"]["failed"] > 0)
        return _ended(session, state)


def _begin_retry(state: RunState, options: Options) -> None:
    if state.batch is not None and state.batch["request_counts"]["failed"] and options.retry_failed:
        state.begin_retry(options.output)


def _ended(session: Session, state: RunState) -> ExitCode:
    batch = state.batch
    assert batch is not None
    if not batch["request_counts"]["total"]:
        state.remove()  # nothing has run: once the input is repaired, it begins anew
    session.show(batch, summary)
    return exit_code(batch)


def _checked(source: BatchInput) -> Checked:
    """The check of an input without errors. Raises CommandError."""
    checked = source.check()
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


def _submit(session: Session, state: RunState, source: BatchInput, options: Options) -> None:
    """Upload the input and make the batch, as far as an earlier run has not done so."""
    if state.batch_id:
        return
    session.on_interrupt = session.on_interrupt or "The same command begins the upload anew."
    if not state.file_id:
        chosen = _failed_lines(source, options.output) if state.is_retry else source
        checked = _checked(chosen)
        state.endpoint = checked.endpoint
        state.file_id = _uploaded(session, state, chosen, checked)
        state.save()
    request = {
        "input_file_id": state.file_id,
        "endpoint": state.endpoint,
        "completion_window": options.window,
    }
    patience = Patience(session.client)
    while not state.batch_id:
        try:
            state.batch_id = (
                _made_before(session, state.file_id)
                or session.client.post("/v1/batches", request)["id"]
            )
        except CommandError as error:
            patience.wait(error)
    state.save()


def _failed_lines(source: BatchInput, output: Path) -> BatchInput:
    """The lines of the input that have failed."""
    with errors_path(output).open("rb") as lines:
        failed = {json.loads(line)["custom_id"] for line in lines}
    return source.only(failed.__contains__)


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
        data=source.data,
        progress=progress,
    )
    try:
        return upload(session.client, what)
    finally:
        display.end()


def _made_before(session: Session, file_id: str) -> str:
    """The batch of a file, if an earlier run has made it, or a request that got no answer."""
    batches: list[dict[str, Any]] = session.client.get("/v1/batches", limit=100)["data"]
    return next((str(each["id"]) for each in batches if each["input_file_id"] == file_id), "")


def _await_results(session: Session, state: RunState, output: Path) -> None:
    """Follow the batch, and fetch its results."""
    if not session.as_json:
        note(state.batch_id)
    batch = follow_batch(session, state.batch_id)
    fetch_run(session.client, state, batch, output)
