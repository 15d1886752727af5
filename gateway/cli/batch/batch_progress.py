"""Follows a batch up to its end: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from typing import Any

from gateway.cli.command import Session
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.gateway_client import RETRY_S, Patience
from gateway.cli.output import count, duration, figure, note
from shared.platform.printable import printable

_BAR = 24
_LINE_EVERY_S = 10.0
ENDED = ("failed", "completed", "expired", "cancelled")


def follow_batch(session: Session, batch_id: str) -> dict[str, Any]:
    """Show how far a batch is; returns the batch at its end."""
    display, patience = Display(session), Patience(session.client)
    try:
        while True:
            for event in session.client.follow(f"/v1/batches/{batch_id}/events"):
                if event.name in ENDED:
                    batch: dict[str, Any] = event.json()
                    return batch
                if event.name == "progress":
                    patience.end()
                    display.show(event.json())
                elif event.name == "error":
                    patience.wait(_failure(event.json()["error"]))
            time.sleep(RETRY_S)
    finally:
        display.end()


def _failure(error: dict[str, Any]) -> CommandError:
    is_gone = error.get("code") == "not_found"
    return CommandError(error["message"], ExitCode.NOT_FOUND if is_gone else ExitCode.UNREACHABLE)


class Display:
    """Prints the progress to stderr; with --json each event to stdout."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._bar = sys.stderr.isatty() and not session.as_json
        self._shown_at = float("-inf")
        self._shown = ""
        self._drawn = False

    def show(self, event: dict[str, Any]) -> None:
        """Show one event."""
        if self._session.as_json:
            self._session.line(event)
            return
        text = sentence(event)
        if self._bar:
            self.draw(share(event), text)
        elif text != self._shown and time.monotonic() - self._shown_at >= _LINE_EVERY_S:
            note(text)
            self._shown, self._shown_at = text, time.monotonic()

    def draw(self, part: float, text: str) -> None:
        """Draw the bar and a text in place of the ones before."""
        if not self._bar:
            return
        full = round(_BAR * part)
        sys.stderr.write(f"\r\x1b[K[{'#' * full}{'.' * (_BAR - full)}] {printable(text)}")
        sys.stderr.flush()
        self._drawn = True

    def end(self) -> None:
        """The next line begins below the bar."""
        if self._drawn:
            sys.stderr.write("\n")
            self._drawn = False


def share(event: dict[str, Any]) -> float:
    """How much of a batch is done, from 0 to 1."""
    counts = event["request_counts"]
    ended = int(counts["completed"]) + int(counts["failed"])
    return min(1.0, ended / counts["total"]) if counts["total"] else 0.0


def sentence(event: dict[str, Any]) -> str:
    """An event for people."""
    counts = event["request_counts"]
    if not counts["total"]:
        return str(event["status"])
    parts = [
        f"{event['status']}: {counts['completed'] + counts['failed']:,} of {counts['total']:,}"
    ]
    if counts["failed"]:
        parts.append(f"{counts['failed']:,} failed")
    if event.get("lines_per_s"):
        parts.append(f"{figure(event['lines_per_s'])} lines/s")
        parts.append(f"{figure(event['output_tokens_per_s'])} tokens/s")
    if event.get("eta_s") is not None:
        parts.append(f"{duration(event['eta_s'])} left")
    return ", ".join(parts)


def summary(batch: dict[str, Any]) -> str:
    """The end of a batch for people."""
    counts, usage = batch["request_counts"], batch["usage"]
    text = (
        f"{batch['id']} {batch['status']}: {count(counts['completed'], 'line')} answered, "
        f"{counts['failed']:,} failed, {figure(usage['input_tokens'])} tokens in, "
        f"{figure(usage['output_tokens'])} out"
    )
    errors = batch["errors"]["data"] if batch.get("errors") else []
    lines = [f"  line {each['line'] or '-'}: {each['code']}: {each['message']}" for each in errors]
    return "\n".join([text, *lines])


def exit_code(batch: dict[str, Any]) -> ExitCode:
    """How a command about a batch that has ended ends."""
    if batch["request_counts"]["failed"]:
        return ExitCode.PARTIAL
    return ExitCode.OK if batch["status"] == "completed" else ExitCode.FAILED
