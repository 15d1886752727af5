"""An attack on a fleet by one client, and the calls of which attacks are made."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from load_tests.faults.hostile.raw_http import KEY, RawResponse, exchange, request
from load_tests.systems.engine import MODEL

_MAX_MESSAGE = 80
CALL_S = 60.0
"""Time limit of a call."""


@dataclass(slots=True)
class AttackTarget:
    """The fleet that is attacked."""

    port: int
    idle_s: float
    """How long idle connections are kept open."""
    made: str = ""
    """What the attack's preparation made: an id."""


Attack = Callable[[AttackTarget], str]
"""Returns the server's answer as text."""
Prepare = Callable[[AttackTarget], None]


@dataclass(frozen=True, slots=True)
class HostileRequest:
    """One row of the table: a request, or several."""

    title: str
    attack: Attack
    prepare: Prepare = lambda target: None
    """Runs before the measurement."""
    expected: str = ""
    """What the response must contain."""


def call(
    target: AttackTarget,
    method: str,
    path: str,
    body: Any = None,
    *,
    key: str = KEY,
    headers: Mapping[str, str] | None = None,
) -> RawResponse:
    """Send one request; return the answer to its end."""
    # `dumps` holds the interpreter's lock: the bystanders' threads could not run meanwhile.
    data = b"" if body is None else "".join(json.JSONEncoder().iterencode(body)).encode()
    return exchange(target.port, request(method, path, data, key=key, headers=headers), CALL_S)


def gets(path: str, times: int = 1, at_once: int = 1) -> Attack:
    """Return an attack that gets `path`, with the prepared id for `{id}`."""

    def attack(target: AttackTarget) -> str:
        where = path.format(id=target.made)
        calls = [lambda: call(target, "GET", where)] * at_once
        return summarize([each for _ in range(times) for each in together(calls)])

    return attack


def posts(path: str, *, times: int = 1, pause_s: float = 0.0, **fields: Any) -> Attack:
    """Return an attack that posts one body with these fields and the model."""

    def attack(target: AttackTarget) -> str:
        answers = []
        for _ in range(times):
            answers.append(call(target, "POST", path, {"model": MODEL, **fields}))
            time.sleep(pause_s)
        return summarize(answers)

    return attack


def together(calls: Sequence[Callable[[], RawResponse]]) -> list[RawResponse]:
    """Make all calls at the same time, each in a thread."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(lambda each: each(), calls))


def summarize(answers: Iterable[RawResponse]) -> str:
    """Return statuses, error message, longest time and bytes sent as text for the table."""
    answers = list(answers)
    statuses = Counter(response.status for response in answers)
    shown = ", ".join(f"{n} x {s}" if n > 1 else s for s, n in statuses.items())
    slowest = max(answers, key=lambda response: response.seconds)
    error = next((message(a.body) for a in answers if a.status[0] in "45"), "")
    reason = f" ({error})" if error else ""
    return f"{shown}{reason} in {slowest.seconds:.1f} s, {slowest.sent / 1e6:.1f} MB sent"


def message(body: bytes) -> str:
    """Return the beginning of an error's message."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = str(json.loads(body)["error"]["message"])
        return " ".join(text.replace("|", "/").split())[:_MAX_MESSAGE]
    return ""
