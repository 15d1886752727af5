"""Prints a job's output as it comes: `flotilla jobs follow` and `flotilla submit --follow`."""

from __future__ import annotations

import json
import sys
from typing import Any

from gateway.cli.client import ServerEvent
from gateway.cli.command import Session
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.output import note, printable

_ENDS = {
    "completed": ExitCode.OK,
    "failed": ExitCode.FAILED,
    "cancelled": ExitCode.FAILED,
    "expired": ExitCode.TIMED_OUT,
}


def follow_job(session: Session, job_id: str, after: str = "", *, raw: bool = False) -> ExitCode:
    """Print what the job generates up to its end; the exit code says how it has ended.

    `raw`: print the events themselves. With `--json` each is one line of JSON.
    """
    session.on_interrupt = (
        f"{job_id} goes on; `flotilla jobs follow {job_id}` shows it again, "
        f"`flotilla jobs cancel {job_id}` ends it."
    )
    begun = False
    for event in session.client.follow(f"/jobs/{job_id}/events", after):
        if event.comment:
            continue
        if session.as_json:
            session.line({"event": event.name, "id": event.id, "data": event.json()})
        elif raw:
            print(f"{event.name} {event.id} {printable(event.data.decode(errors='replace'))}")
        elif event.name in ("delta", "chunk"):
            begun = _print_text(event) or begun
        elif event.name in ("queued", "in_progress"):
            note(_progress(event))
        if event.name == "error":
            raise CommandError(event.json()["error"]["message"])
        if event.name in _ENDS:
            if begun:
                print()
            if not (session.as_json or raw):
                _print_end(event, begun=begun)
            return _ENDS[event.name]
    return ExitCode.OK  # 204: the job had ended, and nothing follows `after`


def text_of(body: Any) -> str:
    """The text of an answer or of a chunk: of chat, of completions, of a job's deltas."""
    choices = body.get("choices") if isinstance(body, dict) else None
    if not choices:
        return ""
    choice = choices[0]
    part = choice.get("delta") or choice.get("message") or {}
    return str(part.get("content") or choice.get("text") or "")


def _print_text(event: ServerEvent) -> bool:
    text = text_of(event.json())
    sys.stdout.write(printable(text))
    sys.stdout.flush()
    return bool(text)


def _progress(event: ServerEvent) -> str:
    data = event.json()
    if event.name == "in_progress":
        return "a worker runs it"
    position = data.get("position")
    return f"queued, position {position}" if position else "queued"


def _print_end(event: ServerEvent, *, begun: bool) -> None:
    job = event.json()
    if not begun and job.get("result") is not None:
        print(printable(text_of(job["result"])) or json.dumps(job["result"], ensure_ascii=False))
    elif not begun and job.get("text"):
        print(printable(job["text"]))
    error = job.get("error")
    note(f"{job['state']}: {error['message']}" if error else str(job["state"]))
