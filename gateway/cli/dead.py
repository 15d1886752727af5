"""`flotilla dead`: jobs that are out of attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from gateway.cli.command import Session, gateway_command
from gateway.cli.completion import letter_ids
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.options import DryRun, Yes, confirm
from gateway.cli.output import count, note, since, table
from shared.platform.printable import printable

app = typer.Typer(help="Dead letters: jobs out of attempts.", no_args_is_help=True)

What = Annotated[
    str | None, typer.Option("--what", help="attempts: jobs; entry, job, ...: unreadable data.")
]
Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="LETTER", help="Ids of dead letters.", autocompletion=letter_ids),
]
All = Annotated[bool, typer.Option("--all", help="All of them, or all of --what.")]
_PAGE = 100


@gateway_command(app, "ls", "flotilla dead ls", "flotilla dead ls --what attempts --json")
def ls(
    session: Session,
    what: What = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=_PAGE)] = 20,
) -> None:
    """List dead letters, newest first."""
    body = session.client.get("/admin/dead", what=what, limit=limit)
    session.show(body, lambda body: _table(body["data"]))
    if not session.as_json and (body["has_more"] or not body["data"]):
        note("there are more: --limit" if body["has_more"] else "no dead letter")


@gateway_command(
    app,
    "show",
    "flotilla dead show 000-1790000000000-0",
    "flotilla dead show 000-1790000000000-0 --json",
)
def show(
    session: Session,
    letter: Annotated[str, typer.Argument(metavar="LETTER", autocompletion=letter_ids)],
) -> None:
    """Show one dead letter: its reason, its attempts, what was set aside."""
    session.show(session.client.get(f"/admin/dead/{letter}"), _page)


@gateway_command(
    app,
    "replay",
    "flotilla dead replay 000-1790000000000-0",
    "flotilla dead replay --all --what attempts --dry-run",
)
def replay(
    session: Session,
    letters: Ids = None,
    every: All = False,
    what: What = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> ExitCode:
    """Submit the requests of dead jobs again, for their tenants, and delete the letters."""
    chosen = _chosen(session, letters, what, every=every, replayable=True)

    def submit(letter: str) -> Any:
        return session.client.post(f"/admin/dead/{letter}/replay")

    return _each(session, "replay", chosen, submit, dry_run=dry_run, yes=yes or not every)


@gateway_command(
    app,
    "drop",
    "flotilla dead drop 000-1790000000000-0",
    "flotilla dead drop --all --what entry --yes",
)
def drop(
    session: Session,
    letters: Ids = None,
    every: All = False,
    what: What = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> ExitCode:
    """Delete dead letters."""
    chosen = _chosen(session, letters, what, every=every, replayable=False)

    def delete(letter: str) -> Any:
        return session.client.send("DELETE", f"/admin/dead/{letter}").json()

    return _each(session, "drop", chosen, delete, dry_run=dry_run, yes=yes or not every)


def _chosen(
    session: Session, letters: list[str] | None, what: str | None, *, every: bool, replayable: bool
) -> list[str]:
    """The ids that are named, or all that there are. Raises CommandError."""
    if bool(letters) == every:
        raise CommandError("name dead letters, or choose all with --all", ExitCode.USAGE)
    if letters:
        return letters
    rows = _pages(session, what)
    return [row["id"] for row in rows if row["replayable"] or not replayable]


def _pages(session: Session, what: str | None) -> Iterator[Mapping[str, Any]]:
    cursor, more = None, True
    while more:
        query = {"what": what, "limit": _PAGE, "cursor": cursor}
        page = session.client.get("/admin/dead", **query)
        yield from page["data"]
        cursor, more = page["next_cursor"], page["has_more"]


def _each(
    session: Session,
    action: str,
    letters: list[str],
    act: Callable[[str], Any],
    *,
    dry_run: bool,
    yes: bool,
) -> ExitCode:
    """Carry out an action on each letter; the exit code of the failure if all have failed."""
    if dry_run:
        session.show({"matched": len(letters), "ids": letters}, lambda body: "\n".join(body["ids"]))
        note(f"{action} would change {count(len(letters), 'dead letter')}")
        return ExitCode.OK
    if letters and not yes:
        confirm(f"{action} {count(len(letters), 'dead letter')}?")
    failures: list[CommandError] = []
    for letter in letters:
        try:
            done = act(letter)
        except CommandError as error:
            failures.append(error)
            note(f"flotilla: {letter}: {error}")
        else:
            if session.as_json:
                session.line(done)
            else:
                print(
                    f"{letter}: "
                    + (f"replayed as {done['job_id']}" if "job_id" in done else "dropped")
                )
    if failures and len(failures) == len(letters):
        return failures[0].code
    return ExitCode.PARTIAL if failures else ExitCode.OK


def _table(letters: Any) -> RenderableType:
    columns = ("LETTER", "WHAT", "AGE>", "JOB", "MODEL", "TRIES>", "REPLAY", "REASON")
    return table(
        columns,
        (
            (
                row["id"],
                row["what"],
                since(row["created_at"]),
                row["job_id"] or row["subject"],
                row["job"].get("model", ""),
                len(row["attempts"]) or "",
                "yes" if row["replayable"] else "no",
                row["reason"],
            )
            for row in letters
        ),
    )


def _page(row: Any) -> RenderableType:
    job = row["job"]
    fields = {
        "letter": row["id"],
        "what": row["what"],
        "reason": row["reason"],
        "set aside": f"{since(row['created_at'])} ago",
        "job": row["job_id"] or row["subject"],
        **{name: job[name] for name in ("tenant", "model", "pool", "endpoint") if name in job},
        "replay": "possible" if row["replayable"] else "not possible: its request is not kept",
    }
    attempts = table(
        ("WORKER", "RAN>", "OUTCOME", "ENTRIES>"),
        (
            (
                each["worker"],
                since(each["started_at"], each["ended_at"]) if each["started_at"] else "",
                each["outcome"] or "",
                each["entries"],
            )
            for each in row["attempts"]
        ),
    )
    values = [Text(f"{name}: {printable(value)}") for name, value in row["values"].items()]
    return Group(table(("", ""), fields.items()), Text(), attempts, Text(), *values)
