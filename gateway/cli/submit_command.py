"""`flotilla submit`: queue a prompt or a whole request as a job."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.command import Session, gateway_command
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.follow import follow_job
from gateway.cli.jobs_command import await_end
from gateway.cli.options import Model, Pairs, parse_pairs
from gateway.cli.output import note

app = typer.Typer()
CHAT = "/v1/chat/completions"


@gateway_command(
    app,
    "submit",
    'flotilla submit "write a haiku" --follow',
    "flotilla submit -f request.json --lane flex --meta team=search",
)
def submit(
    session: Session,
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The prompt; - reads it from stdin.")
    ] = None,
    model: Model = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="The request's body as JSON, instead.")
    ] = None,
    endpoint: Annotated[str, typer.Option(help="Which endpoint answers the body.")] = CHAT,
    lane: Annotated[str | None, typer.Option(help="priority, default or flex.")] = None,
    deadline: Annotated[
        float | None, typer.Option(min=0.001, help="The job expires after so many seconds.")
    ] = None,
    max_wait: Annotated[
        float | None,
        typer.Option(min=0.001, help="Refuse it if it would wait for so many seconds, or longer."),
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="The same key and request is the same job.")
    ] = None,
    meta: Pairs = None,
    follow: Annotated[bool, typer.Option(help="Print its output as it comes.")] = False,
    wait: Annotated[float, typer.Option(min=0, help="Wait so many seconds for its end.")] = 0.0,
) -> ExitCode:
    """Submit a job and print its id. It runs to its end without this command."""
    request = {
        "endpoint": endpoint,
        "body": _body(prompt, file, model, endpoint),
        "lane": lane,
        "deadline_s": deadline,
        "max_wait_s": max_wait,
        "metadata": parse_pairs(meta or ()),
    }
    given = {name: value for name, value in request.items() if value is not None}
    headers = {"idempotency-key": idempotency_key} if idempotency_key else {}
    job = session.client.post("/jobs", given, headers)
    if follow:
        note(job["id"])
        return follow_job(session, job["id"])
    if wait:
        await_end(session, job["id"], wait)
        job = session.client.get(f"/jobs/{job['id']}")
    session.show(job, lambda body: str(body["id"]))
    if not session.as_json:
        note(_remark(job))
    return _code(job, waited=bool(wait))


def _body(prompt: str | None, file: Path | None, model: str | None, endpoint: str) -> Any:
    """The request. Raises CommandError."""
    if (prompt is None) == (file is None):
        raise CommandError("give a prompt, or a request with --file", ExitCode.USAGE)
    if file is not None:
        try:
            body = json.loads(file.read_text() if str(file) != "-" else sys.stdin.read())
        except (OSError, ValueError) as error:
            raise CommandError(f"{file}: {error}", ExitCode.USAGE) from error
        if not isinstance(body, dict):
            raise CommandError(f"{file}: a request is a JSON object", ExitCode.USAGE)
    else:
        text = sys.stdin.read() if prompt == "-" else prompt
        body = (
            {"messages": [{"role": "user", "content": text}]}
            if endpoint == CHAT
            else {"prompt": text}
        )
    return body | ({"model": model} if model else {})


def _remark(job: Any) -> str:
    if job.get("position"):
        return f"queued, position {job['position']}; flotilla jobs follow {job['id']}"
    return f"{job['state']}; flotilla jobs follow {job['id']}"


def _code(job: Any, *, waited: bool) -> ExitCode:
    if not waited or job["state"] == "completed":
        return ExitCode.OK
    return ExitCode.FAILED if job.get("finished_at") else ExitCode.TIMED_OUT
