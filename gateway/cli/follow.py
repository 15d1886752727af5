"""Prints a job's output as it comes: `flotilla jobs follow` and `flotilla submit --follow`."""

from __future__ import annotations

import sys
import time
from typing import Any

from gateway.cli.command import Session
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.gateway_client import ATTEMPTS, RETRY_S, Patience, ServerEvent
from gateway.cli.output import json_text, note
from shared.platform.printable import printable

_INTERRUPTIONS = frozenset({"gateway_stopped", "redis_unavailable"})
_ENDS = {
    "completed": ExitCode.OK,
    "failed": ExitCode.FAILED,
    "cancelled": ExitCode.FAILED,
    "expired": ExitCode.TIMED_OUT,
}


def follow_job(session: Session, job_id: str, after: str = "", *, raw: bool = False) -> ExitCode:
    """Print what the job generates up to its end; returns an exit code for how it has ended.

    `raw`: print the events themselves. With `--json` each is one line of JSON.
    """
    session.on_interrupt = (
        f"{job_id} goes on; `flotilla jobs follow {job_id}` shows it again, "
        f"`flotilla jobs cancel {job_id}` ends it."
    )
    output = _Output(session, raw=raw)
    patience, failures = Patience(session.client), 0
    while True:
        before = after
        for event in session.client.follow(f"/jobs/{job_id}/events", after):
            after = event.id or after
            if output.interrupted(event):
                break
            if not event.name:  # a comment
                continue
            output.write(event)
            if event.name in _ENDS:
                return _ENDS[event.name]
        # The response has ended before the job, or it was empty: nothing follows `after`.
        try:
            job = session.client.get(f"/jobs/{job_id}")
        except CommandError as error:
            patience.wait(error)
            continue
        patience.end()
        if job["state"] in _ENDS:
            return _ENDS[job["state"]]
        failures = failures + 1 if after == before else 0
        if failures >= ATTEMPTS:
            raise CommandError(
                f"the events of {job_id} break off; it is {job['state']}", ExitCode.UNREACHABLE
            )
        time.sleep(RETRY_S * failures)


class _Output:
    """Writes events for people, or for programs."""

    def __init__(self, session: Session, *, raw: bool) -> None:
        self._session = session
        self._raw = raw
        self._begun = False

    def interrupted(self, event: ServerEvent) -> bool:
        """Whether a gateway ends the stream though the job goes on. Raises other errors."""
        if event.name != "error":
            return False
        error = event.json()["error"]
        if error.get("code") in _INTERRUPTIONS:
            return True
        raise CommandError(error["message"])

    def write(self, event: ServerEvent) -> None:
        """Print one event."""
        if self._session.as_json:
            self._session.line({"event": event.name, "id": event.id, "data": event.json()})
        elif self._raw:
            print(f"{event.name} {event.id} {printable(event.data.decode(errors='replace'))}")
        elif event.name in ("delta", "chunk"):
            self._begun = _print_text(event) or self._begun
        elif event.name in ("queued", "in_progress"):
            note(_progress(event))
        elif event.name in _ENDS:
            if self._begun:
                print()
            _print_end(event, begun=self._begun)


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
        print(printable(text_of(job["result"])) or json_text(job["result"]))
    elif not begun and job.get("text"):
        print(printable(job["text"]))
    error = job.get("error")
    note(f"{job['state']}: {error['message']}" if error else str(job["state"]))
