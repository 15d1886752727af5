"""Checks what Redis holds of a job against the undisturbed answer and what its client saw. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from load_tests.oracle.observation import Observation
from load_tests.oracle.request_classes import Mode
from load_tests.oracle.stored_job import StoredJob
from shared.job.log import ENDS, Entry, Transcript, read_journal
from shared.job.states import JobState

_CLOCK_S = 1e-6
"""Times of the record are rounded to microseconds."""


def terminal_entries(stored: StoredJob) -> int:
    """Return how many entries of the log hold an end."""
    return sum(entry.event in ENDS for entry in stored.entries)


def record_errors(seen: Observation, stored: StoredJob | None) -> list[str]:
    """Return what is wrong with the record and log of an accepted request; empty if nothing is."""
    if stored is None:
        return ["Redis has no record of it"]
    job = stored.job
    errors = [*_log_errors(stored), *_lease_errors(stored)]
    if not job.state.terminal:
        return [*errors, f"it is still {job.state}"]
    if stored.ttl_ms < 0:
        errors.append("its record has no time to live")
    if stored.log_ttl_ms == -1:
        errors.append("its log has no time to live")
    errors += _answer_errors(seen, stored)
    if seen.request.mode in (Mode.EVENTS, Mode.RESUMED) and seen.terminal_events != 1:
        errors.append(f"its client got {seen.terminal_events} terminal events")
    return errors


def contradictions(seen: Observation, stored: StoredJob | None) -> list[str]:
    """Return where a record contradicts the right answer or what its client saw.

    For faults in which Redis may lose records, logs and their entries.
    """
    if stored is None or stored.lacks_entries or not stored.job.state.terminal:
        return []
    if seen.complete:
        return _answer_errors(seen, stored)
    texts = _texts(stored.answer)
    right = seen.expected.texts
    if all(right.get(index, "").startswith(text) for index, text in texts.items()):
        return []
    return ["the text in its log is wrong"]


def _answer_errors(seen: Observation, stored: StoredJob) -> list[str]:
    """The record of a request whose client has the whole answer."""
    if not seen.complete or seen.expected.answer.status != 200:
        return []
    if stored.job.state is not JobState.COMPLETED:
        return [f"its client has a complete answer, but it is {stored.job.state}"]
    return _content_errors(seen, stored)


def _log_errors(stored: StoredJob) -> list[str]:
    errors = []
    numbers = [entry.position.number for entry in stored.entries]
    if numbers != list(range(1, len(numbers) + 1)):
        errors.append("its log's entries are not numbered 1 to N")
    if stored.lacks_entries:
        errors.append("its log lacks entries")
    if stored.job.state.terminal:
        ends = terminal_entries(stored)
        if ends != 1:
            errors.append(f"its log has {ends} terminal entries")
        elif stored.entries[-1].event != stored.job.state:
            errors.append(f"its log ends with {stored.entries[-1].event!r}, not {stored.job.state}")
    return errors


def _lease_errors(stored: StoredJob) -> list[str]:
    """Two workers must not hold one job at a time."""
    return [
        f"{before.worker} and {after.worker} held it at the same time"
        for before, after in pairwise(stored.job.attempts)
        if before.ended_at is None or after.started_at < before.ended_at - _CLOCK_S
    ]


def _content_errors(seen: Observation, stored: StoredJob) -> list[str]:
    """The log of a completed job holds every token once, and its usage counts them."""
    expected = seen.expected
    try:
        transcript = _transcript(stored.answer)
    except (ValueError, TypeError, LookupError) as error:
        return [f"its journal can't be read: {error!r}"]
    errors = []
    if transcript.tokens != dict(expected.tokens):
        errors.append(f"its log has {transcript.tokens} tokens, not {dict(expected.tokens)}")
    if _texts(stored.answer) != expected.texts:
        errors.append("the text in its log is wrong")
    details = stored.entries[-1].details if stored.entries else ()
    counted = details[0] if details else None
    if counted != expected.completion_tokens:
        errors.append(f"its last entry counts {counted} tokens, not {expected.completion_tokens}")
    usage = stored.job.usage or {}
    right = (expected.prompt_tokens, expected.completion_tokens)
    if (usage.get("prompt_tokens"), usage.get("completion_tokens")) != right:
        errors.append(f"its usage is {usage}, not {right[0]} and {right[1]}")
    return errors


def _texts(entries: Sequence[Entry]) -> dict[int, str]:
    return {n: choice["text"] for n, choice in enumerate(_transcript(entries).choices())}


def _transcript(entries: Sequence[Entry]) -> Transcript:
    transcript = Transcript.empty()
    for entry in entries:
        transcript.add(read_journal(entry.journal, entry.items))
    return transcript
