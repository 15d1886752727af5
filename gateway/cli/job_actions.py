"""`flotilla jobs cancel` and `retry`: some jobs by their ids, or all that a filter selects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.command import Session, gateway_command
from gateway.cli.completion import job_ids
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.options import DryRun, Reason, Yes, confirm
from gateway.cli.output import count, note

app = typer.Typer()

Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="JOB", help="Ids of jobs.", autocompletion=job_ids),
]
Filter = Annotated[
    str | None,
    typer.Option(
        "--filter", "-f", metavar="FILTER", help="All jobs that it selects, as in `jobs ls`."
    ),
]


@gateway_command(
    app,
    "cancel",
    "flotilla jobs cancel job_000a1b2c",
    "flotilla jobs cancel --filter 'state:queued model:qwen' --reason 'wrong prompt'",
)
def cancel(
    session: Session,
    jobs: Ids = None,
    selected: Filter = None,
    dry_run: DryRun = False,
    reason: Reason = "",
    yes: Yes = False,
) -> ExitCode:
    """Cancel jobs; their output so far is kept. With --filter it asks first."""
    if _one_of(jobs, selected):
        return _by_filter(session, "cancel", selected, dry_run=dry_run, reason=reason, yes=yes)
    return _by_id(session, "cancel", jobs or [], dry_run=dry_run)


@gateway_command(
    app,
    "retry",
    "flotilla jobs retry job_000a1b2c",
    "flotilla jobs retry --filter 'state:failed since:1h' --dry-run",
)
def retry(
    session: Session,
    jobs: Ids = None,
    selected: Filter = None,
    body: Annotated[
        Path | None,
        typer.Option(help="File with another request to send instead; for one job."),
    ] = None,
    dry_run: DryRun = False,
    reason: Reason = "",
    yes: Yes = False,
) -> ExitCode:
    """Submit the requests of failed, cancelled or expired jobs again, as new jobs."""
    if body is not None and (selected or len(jobs or ()) != 1):
        raise CommandError("--body is for one job", ExitCode.USAGE)
    if _one_of(jobs, selected):
        return _by_filter(session, "retry", selected, dry_run=dry_run, reason=reason, yes=yes)
    return _by_id(session, "retry", jobs or [], _read(body), dry_run=dry_run)


def _one_of(jobs: list[str] | None, selected: str | None) -> bool:
    """Whether the filter selects the jobs. Raises CommandError."""
    if bool(jobs) == (selected is not None):
        raise CommandError("name jobs, or select them with --filter", ExitCode.USAGE)
    return selected is not None


def _by_id(
    session: Session, action: str, jobs: list[str], body: Any = None, *, dry_run: bool
) -> ExitCode:
    """Carry out an action on each job; the exit code of the failure if all have failed."""
    failures: list[CommandError] = []
    for job in jobs:
        try:
            if dry_run:
                done = session.client.of_job(job)
            else:
                done = session.client.act_on_job(action, job, body)
        except CommandError as error:
            failures.append(error)
            note(f"flotilla: {job}: {error}")
        else:
            if session.as_json:
                session.line(done)
            else:
                print(f"{job}: {_outcome(action, job, done)}")
    if failures and len(failures) == len(jobs):
        return failures[0].code
    return ExitCode.PARTIAL if failures else ExitCode.OK


def _outcome(action: str, job: str, done: Any) -> str:
    if "state" not in done:  # another tenant's
        return f"{action} done" if done["done"] else "has ended already"
    again = f" as {done['id']}" if done["id"] != job else ""
    return f"{done['state']}{again}"


def _by_filter(
    session: Session, action: str, selected: str | None, *, dry_run: bool, reason: str, yes: bool
) -> ExitCode:
    """Print what would change, ask, then do it, in as many calls as it takes."""
    path = f"/admin/jobs/{action}"
    request = {"filter": selected, "reason": reason}
    body = session.client.post(path, request | {"dry_run": True})
    if body["matched"] and not dry_run:
        if not yes:
            note(_preview(action, body))
            confirm(f"{action} {_number(body)}?")
        body = _carried_out(session, path, request)
    if dry_run:
        session.show(body, lambda body: _preview(action, body))
        return ExitCode.OK
    session.show(body, lambda body: _summary(action, body))
    left = body["matched"] - body["done"] - body.get("skipped", 0)
    return ExitCode.PARTIAL if left else ExitCode.OK


def _carried_out(session: Session, path: str, request: dict[str, Any]) -> dict[str, Any]:
    """The sum of the answers to repeated calls."""
    total: dict[str, Any] = {}
    more = True
    while more:
        part = session.client.post(path, request | {"dry_run": False})
        more, request = part["more"], request | {"cursor": part["next_cursor"]}
        sums = {
            name: total.get(name, 0) + part.get(name, 0) for name in ("matched", "done", "skipped")
        }
        total = part | sums | {"ids": [*total.get("ids", ()), *part["ids"]]}
    return total


def _preview(action: str, body: Any) -> str:
    ids = body["ids"]
    rest = ["  ..."] if body["matched"] > len(ids) or body.get("more") else []
    head = f"{action} would change {_number(body)}"
    return "\n".join([head, *(f"  {job}" for job in ids), *rest])


def _number(body: Any) -> str:
    return ("more than " if body.get("more") else "") + count(body["matched"], "job")


def _summary(action: str, body: Any) -> str:
    skipped = body.get("skipped")
    rest = f", {skipped} could not be: they have ended in another way" if skipped else ""
    return f"{action}: {body['done']} of {count(body['matched'], 'job')}{rest}"


def _read(path: Path | None) -> Any:
    if path is None:
        return None
    try:
        return {"body": json.loads(path.read_text())}
    except (OSError, ValueError) as error:
        raise CommandError(f"{path}: {error}", ExitCode.USAGE) from error
