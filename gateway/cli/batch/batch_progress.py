"""Follows a batch up to its end: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Any

from gateway.cli.command import Session
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.gateway_client import Patience
from gateway.cli.output import count, duration, figure, note
from shared.platform.printable import printable

_BAR = 24
_LINE_EVERY_S = 10.0
_POLL_S = 1.0
_RATES_OVER = 11
"""Readings: rates are those of the last ten seconds, as lines are committed some at a time."""
ENDED = ("failed", "completed", "expired", "cancelled")


def follow_batch(session: Session, batch_id: str) -> dict[str, Any]:
    """Show how far a batch is; returns the batch at its end."""
    display, rates, patience = Display(session), Rates(), Patience(session.client)
    try:
        while True:
            try:
                batch: dict[str, Any] = session.client.get(f"/v1/batches/{batch_id}")
            except CommandError as error:
                patience.wait(error)
                continue
            if batch["status"] in ENDED:
                return batch
            patience.end()
            display.show(rates.add(batch, time.monotonic()))
            time.sleep(_POLL_S)
    finally:
        display.end()


class Rates:
    """Lines and tokens per second, of the last readings."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, int, int]] = deque(maxlen=_RATES_OVER)

    def add(self, batch: dict[str, Any], at: float) -> dict[str, Any]:
        """What is shown of a batch as it is now; null: not known yet."""
        counts = batch["request_counts"]
        ended = counts["completed"] + counts["failed"]
        self._readings.append((at, ended, batch["usage"]["output_tokens"]))
        (began, lines, tokens), (now, lines_now, tokens_now) = self._readings[0], self._readings[-1]
        lines_per_s = tokens_per_s = eta_s = None
        if (elapsed := now - began) > 0:
            lines_per_s = round((lines_now - lines) / elapsed, 2)
            tokens_per_s = round((tokens_now - tokens) / elapsed, 2)
        if lines_per_s and counts["total"]:
            eta_s = round((counts["total"] - ended) / lines_per_s, 1)
        return {
            "id": batch["id"],
            "status": batch["status"],
            "request_counts": counts,
            "lines_per_s": lines_per_s,
            "output_tokens_per_s": tokens_per_s,
            "eta_s": eta_s,
        }


class Display:
    """Prints the progress to stderr; with --json each reading to stdout."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._bar = sys.stderr.isatty() and not session.as_json
        self._shown_at = float("-inf")
        self._shown = ""
        self._drawn = False

    def show(self, reading: dict[str, Any]) -> None:
        """Show what Rates has told."""
        if self._session.as_json:
            self._session.line(reading)
            return
        text = sentence(reading)
        if self._bar:
            self.draw(share(reading), text)
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


def share(reading: dict[str, Any]) -> float:
    """How much of a batch is done, from 0 to 1."""
    counts = reading["request_counts"]
    ended = int(counts["completed"]) + int(counts["failed"])
    return min(1.0, ended / counts["total"]) if counts["total"] else 0.0


def sentence(reading: dict[str, Any]) -> str:
    """A reading for people."""
    counts = reading["request_counts"]
    if not counts["total"]:
        return str(reading["status"])
    parts = [
        f"{reading['status']}: {counts['completed'] + counts['failed']:,} of {counts['total']:,}"
    ]
    if counts["failed"]:
        parts.append(f"{counts['failed']:,} failed")
    if reading.get("lines_per_s"):
        parts.append(f"{figure(reading['lines_per_s'])} lines/s")
        parts.append(f"{figure(reading['output_tokens_per_s'])} tokens/s")
    if reading.get("eta_s") is not None:
        parts.append(f"{duration(reading['eta_s'])} left")
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
