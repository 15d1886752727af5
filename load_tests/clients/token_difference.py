"""Compares the tokens that a client received with the expected ones. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

_COMPARED = 8
"""Tokens compared to find where in the expected answer the received tokens continue."""


class DifferenceKind(StrEnum):
    """How an answer is wrong."""

    SPLICED = "spliced"
    """After some right tokens the answer starts again from its first token."""
    REPEATED = "repeated"
    """Some tokens appear twice."""
    MISSING = "missing"
    """Tokens in the middle are missing."""
    SHORT = "short"
    """It ended as complete before its last token."""
    LONG = "long"
    """It continues after its last token."""
    FOREIGN = "foreign"
    """Tokens that do not occur there in the expected answer: damaged, or another request's."""


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """The first difference between an answer and the expected one."""

    kind: DifferenceKind
    at: int
    """Number of right tokens before it."""
    received: int
    """Number of tokens received."""
    expected: int
    """Number of tokens expected."""

    def __str__(self) -> str:
        return f"{self.kind} after {self.at}, {self.received} tokens instead of {self.expected}"


def tokens_of(text: str) -> list[str]:
    """Split a text into the simulated engine's tokens: each but the first begins with a space."""
    text = text.removeprefix(" ")  # a text whose beginning was lost starts with one
    return text.split(" ") if text else []


def find_difference(
    received: Sequence[str], expected: Sequence[str], *, complete: bool
) -> TokenDifference | None:
    """Return the first difference; None if there is none.

    An answer that is not `complete` may end early, but its tokens must be right so far.
    """
    at = common_prefix(received, expected)
    if at == len(received) and (at == len(expected) or not complete):
        return None
    return TokenDifference(_kind(received, expected, at), at, len(received), len(expected))


def common_prefix(left: Sequence[str], right: Sequence[str]) -> int:
    """Return the number of equal tokens from the start."""
    n = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        n += 1
    return n


def _kind(received: Sequence[str], expected: Sequence[str], at: int) -> DifferenceKind:
    if at == len(received):
        return DifferenceKind.SHORT
    # The first tokens after a splice may be right by chance: look for it before `at`, too.
    for start in range(at, max(0, at - _COMPARED), -1):
        if _continues(received[start:], expected, [0]):
            return DifferenceKind.SPLICED
    if _continues(received[at:], expected, range(at)):
        return DifferenceKind.REPEATED
    if at == len(expected):
        return DifferenceKind.LONG
    if _continues(received[at:], expected, range(at + 1, len(expected))):
        return DifferenceKind.MISSING
    return DifferenceKind.FOREIGN


def _continues(rest: Sequence[str], expected: Sequence[str], positions: Iterable[int]) -> bool:
    """Return whether `rest` equals what follows one of these positions of `expected`."""
    for position in positions:
        compared = min(_COMPARED, len(rest), len(expected) - position)
        if compared and list(rest[:compared]) == list(expected[position : position + compared]):
            return True
    return False
