"""The `flotilla` command: all of its groups."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from gateway.cli import audit_command as audit
from gateway.cli import chat, config, doctor, job_actions, processes, queues, scale, status
from gateway.cli import files_command as files
from gateway.cli import jobs_command as jobs
from gateway.cli import keys_command as keys
from gateway.cli import models_command as models
from gateway.cli import submit_command as submit
from gateway.cli import usage_command as usage
from gateway.cli import webhook_command as webhook
from gateway.cli import workers_command as workers
from gateway.cli.batch import batch_command as batch
from gateway.cli.exit_codes import MEANINGS
from shared.platform import process_start

app = typer.Typer(
    name="flotilla",
    help="An LLM inference fleet: OpenAI requests become durable jobs that vLLM workers answer.",
    epilog="Every setting is also a variable, FLOTILLA_<NAME>; a flag wins over its variable.\n\n"
    "Exit codes: " + ", ".join(f"{code.value} {text}" for code, text in MEANINGS.items()) + ".",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group in (processes, chat, submit, status, doctor, usage, audit):
    app.add_typer(group.app)  # without a name its commands are the app's
jobs.app.add_typer(job_actions.app)
app.add_typer(jobs.app, name="jobs")
app.add_typer(batch.app, name="batch")
app.add_typer(files.app, name="files")
app.add_typer(webhook.app, name="webhook")
app.add_typer(models.app, name="models")
app.add_typer(workers.app, name="workers")
app.add_typer(queues.app, name="queue")
app.add_typer(scale.app, name="scale")
app.add_typer(keys.app, name="keys")
app.add_typer(config.app, name="config")


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"flotilla {metadata.version('flotilla')}")
        except metadata.PackageNotFoundError:
            typer.echo("flotilla (not installed)")
        raise typer.Exit


def main() -> None:
    """The entry point."""
    process_start.prepare()
    app()


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the command itself."""
