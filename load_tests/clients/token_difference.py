"""Received tokens beside those that the request must get. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

_COMPARED = 8
"""So many tokens tell where in the right answer the received ones go on."""


class Kind(StrEnum):
    """How an answer is wrong."""

    SPLICED = "spliced"
    """The answer begins anew behind its own first part."""
    REPEATED = "repeated"
    MISSING = "missing"
    SHORT = "short"
    """It ended as complete before its last token."""
    LONG = "long"
    """It goes on behind its last token."""
    FOREIGN = "foreign"
    """Tokens that are nowhere near in the right answer: damaged, or another request's."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an answer leaves the right one."""

    kind: Kind
    at: int
    """So many tokens were right."""
    received: int
    expected: int

    def __str__(self) -> str:
        return f"{self.kind} after {self.at}, {self.received} tokens instead of {self.expected}"


def words(text: str) -> list[str]:
    """The simulated engine's tokens: each but the first begins with a space."""
    text = text.removeprefix(" ")  # it has lost its beginning
    return text.split(" ") if text else []


def difference(
    received: Sequence[str], expected: Sequence[str], *, complete: bool
) -> Difference | None:
    """None if it is right. What is not `complete` may end early, but must be right so far."""
    at = common_prefix(received, expected)
    if at == len(received) and (at == len(expected) or not complete):
        return None
    return Difference(_kind(received, expected, at), at, len(received), len(expected))


def common_prefix(left: Sequence[str], right: Sequence[str]) -> int:
    """How many tokens are the same from the start."""
    n = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        n += 1
    return n


def _kind(received: Sequence[str], expected: Sequence[str], at: int) -> Kind:
    if at == len(received):
        return Kind.SHORT
    # The first tokens behind a splice may fit by chance, so it is looked for before `at`, too.
    for place in range(at, max(0, at - _COMPARED), -1):
        if _goes_on(received[place:], expected, [0]):
            return Kind.SPLICED
    if _goes_on(received[at:], expected, range(at)):
        return Kind.REPEATED
    if at == len(expected):
        return Kind.LONG
    if _goes_on(received[at:], expected, range(at + 1, len(expected))):
        return Kind.MISSING
    return Kind.FOREIGN


def _goes_on(rest: Sequence[str], expected: Sequence[str], places: Iterable[int]) -> bool:
    """Does `rest` read like `expected` from one of these places?"""
    for place in places:
        compared = min(_COMPARED, len(rest), len(expected) - place)
        if compared and list(rest[:compared]) == list(expected[place : place + compared]):
            return True
    return False
