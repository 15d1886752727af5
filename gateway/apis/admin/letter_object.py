"""The dead letter object: a dead letter as the API shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core.job_object import attempt_object
from shared.job.job import Attempt, shard_of
from shared.job.record import read_history
from shared.store.redis.dead_letters import Letter

_OF_THE_JOB = frozenset({"tenant", "pool", "model", "endpoint"})


def letter_object(letter: Letter, *, replayable: bool) -> dict[str, Any]:
    """All fields. `replayable`: its job's request is still there."""
    values = dict(letter.values)
    history = _history(values.pop("history", b"")) if letter.what == "attempts" else []
    job = {name: _text(values.pop(name)) for name in sorted(_OF_THE_JOB & values.keys())}
    return {
        "id": str(letter.id),
        "object": "dead_letter",
        "created_at": letter.id.ms / 1e3,
        "what": letter.what,
        "reason": letter.reason,
        "subject": letter.subject,
        "job_id": letter.subject if shard_of(letter.subject) is not None else None,
        "job": job,
        "attempts": [attempt_object(attempt) for attempt in history],
        "replayable": replayable,
        "values": _texts(values),
    }


def _history(packed: bytes) -> list[Attempt]:
    try:
        return read_history(packed)
    except (ValueError, TypeError, LookupError):
        return []


def _texts(values: Mapping[str, bytes]) -> dict[str, str]:
    return {name: _text(value) for name, value in values.items()}


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")
