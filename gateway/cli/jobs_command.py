"""`flotilla jobs`: list jobs, look at one, follow it, get its result."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from gateway.cli.command import Session, gateway_command
from gateway.cli.completion import job_ids
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.follow import follow_job, text_of
from gateway.cli.job_text import job_page, job_table, timeline, why_text
from gateway.cli.output import note
from shared.platform.printable import escaped, printable

app = typer.Typer(help="Jobs: list, look, follow, cancel, retry.", no_args_is_help=True)

JobId = Annotated[str, typer.Argument(metavar="JOB", help="A job's id.", autocompletion=job_ids)]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILTER",
        help="Words such as state:failed model:NAME since:1h worker:ID error:CODE; an operator's "
        "also tenant:NAME.",
    ),
]
_WAIT_S = 30.0


@gateway_command(
    app,
    "ls",
    "flotilla jobs ls state:failed since:1h --limit 50",
    "flotilla jobs ls --error too_many_attempts",
)
def ls(
    session: Session,
    words: Words = None,
    error: Annotated[
        str | None, typer.Option(metavar="CODE", help="Only jobs that ended with this error.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 20,
    watch: Annotated[bool, typer.Option(help="Print the list anew every two seconds.")] = False,
) -> None:
    """List jobs, newest first; words select them."""
    chosen = " ".join(words or ()) or None
    while True:
        body = session.client.list_jobs(chosen, limit, error)
        session.show(body, lambda body: job_table(body["data"]))
        if not body["data"] and not session.as_json:
            note("no job")
        if not watch:
            return
        time.sleep(2)
        print()


@gateway_command(
    app, "show", "flotilla jobs show job_000a1b2c", "flotilla jobs show job_000a1b2c --json"
)
def show(session: Session, job: JobId) -> None:
    """Show one job: state, wait, timeline, attempts, usage, text so far."""
    found = session.client.of_job(job)
    events = [] if session.as_json else session.client.of_job(job, "/timeline")["events"]
    session.show(found, lambda body: job_page(body, events))


@gateway_command(
    app,
    "timeline",
    "flotilla jobs timeline job_000a1b2c",
    "flotilla jobs timeline job_000a1b2c --json",
)
def show_timeline(session: Session, job: JobId) -> None:
    """Show what has happened to a job, and when."""
    session.show(session.client.of_job(job, "/timeline"), timeline)


@gateway_command(
    app, "why", "flotilla jobs why job_000a1b2c", "flotilla jobs why job_000a1b2c --json"
)
def why(session: Session, job: JobId) -> None:
    """Show why a job waits, or why it has ended as it has."""
    session.show(session.client.of_job(job, "/why"), why_text)


@gateway_command(
    app,
    "follow",
    "flotilla jobs follow job_000a1b2c",
    "flotilla jobs follow job_000a1b2c --from 12 --raw-events",
)
def follow(
    session: Session,
    job: JobId,
    after: Annotated[
        str, typer.Option("--from", metavar="EVENT", help="Begin behind the event with this id.")
    ] = "",
    raw_events: Annotated[bool, typer.Option(help="Print the events with their ids.")] = False,
) -> ExitCode:
    """Print a job's output as it comes. Ctrl-C ends this command, not the job."""
    return follow_job(session, job, after, raw=raw_events)


@gateway_command(
    app,
    "result",
    "flotilla jobs result job_000a1b2c",
    "flotilla jobs result job_000a1b2c --wait 60 --json",
)
def result(
    session: Session,
    job: JobId,
    wait: Annotated[float, typer.Option(min=0, help="Wait so many seconds for its end.")] = 0.0,
) -> ExitCode:
    """Print a job's answer: its text, or with --json all of it. 6 if it has not ended."""
    await_end(session, job, wait)
    answer = session.client.send("GET", f"/jobs/{job}/result")
    if answer.status_code == 202:
        state = answer.json()["state"]
        raise CommandError(
            f"{job} is {state}; `flotilla jobs why {job}` explains it, --wait waits for its end",
            ExitCode.TIMED_OUT,
            answer.content,
        )
    is_json = answer.headers.get("content-type", "").startswith("application/json")
    text = text_of(answer.json()) if is_json and not session.as_json else ""
    shown = text or answer.text
    print(escaped(shown) if is_json and not text else printable(shown))
    return ExitCode.OK


def await_end(session: Session, job_id: str, wait_s: float) -> None:
    """Return when the job has ended, or after so many seconds."""
    until = time.monotonic() + wait_s
    session.on_interrupt = f"{job_id} goes on; `flotilla jobs result {job_id}` prints its answer."
    while (left_s := until - time.monotonic()) > 0:
        step_s = min(left_s, _WAIT_S)
        query = {"wait": f"{step_s:.3f}"}
        found = session.client.send("GET", f"/jobs/{job_id}", params=query, wait_s=step_s).json()
        if found.get("finished_at") is not None:
            return
        note(
            f"{found['state']}" + (f", position {found['position']}" if "position" in found else "")
        )
