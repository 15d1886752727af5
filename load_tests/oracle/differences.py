"""Compares what a client got with the undisturbed answer. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from load_tests.oracle.answer import Answer, Chunks, joined, texts_of_body
from load_tests.oracle.observation import Observation


@dataclass(slots=True)
class Differences:
    """How an answer differs from the undisturbed one; nothing is set if it does not."""

    tokens_lost: int = 0
    """Tokens that are missing in front of others, or at the end of a complete answer."""
    tokens_repeated: int = 0
    """Tokens that came again."""
    wrong: list[str] = field(default_factory=list)
    """Other differences, in words."""

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.tokens_lost or self.tokens_repeated or self.wrong)

    def in_words(self) -> list[str]:
        """Return a text for each difference."""
        counts = {"lost": self.tokens_lost, "repeated": self.tokens_repeated}
        return [*self.wrong, *(f"{n} tokens {what}" for what, n in counts.items() if n)]


def differences(seen: Observation) -> Differences:
    """Compare one observation; what a client has of an unfinished answer must be right, too."""
    found = Differences()
    complete = seen.complete
    expected, answer = seen.expected.answer, seen.answer
    if seen.out_of_order:
        found.wrong.append(f"{seen.out_of_order} events out of order")
    if expected.chunks:
        got, right = answer.chunks, expected.chunks
        if seen.expected.joined:
            got, right = joined(got), joined(right)
        _compare_chunks(found, got, right, complete=complete)
        if complete and answer.done != expected.done:
            found.wrong.append("the stream has no [DONE]" if expected.done else "an extra [DONE]")
    else:
        if seen.streams or answer.texts:
            _compare_texts(found, answer.texts, seen.expected.texts, complete=complete)
        if complete:
            _compare_bodies(found, answer, expected)
    if complete and seen.job_texts not in ({}, seen.expected.texts):
        found.wrong.append("the text in the job's object is wrong")
    if len(answer.created) > 1:
        found.wrong.append("`created` changed within the answer")
    if complete and expected.usage is not None and answer.usage is not None:
        counts = ("prompt_tokens", "completion_tokens", "total_tokens")
        if any(answer.usage.get(name) != expected.usage.get(name) for name in counts):
            found.wrong.append(f"usage is {answer.usage}, not {expected.usage}")
    return found


def _compare_chunks(found: Differences, got: Chunks, expected: Chunks, *, complete: bool) -> None:
    for index in {*got, *expected}:
        _compare_sequences(
            found,
            got.get(index, []),
            expected.get(index, []),
            what=f"choice {index}",
            complete=complete,
        )


def _compare_texts(
    found: Differences, got: dict[int, str], expected: dict[int, str], *, complete: bool
) -> None:
    for index in {*got, *expected}:
        parts, whole = (text.get(index, "").split(" ") for text in (got, expected))
        if not complete and parts:
            parts = parts[:-1]  # the last word may be incomplete
        encoded = [[part.encode() for part in text] for text in (parts, whole)]
        _compare_sequences(found, *encoded, what=f"choice {index}", complete=complete)


def _compare_bodies(found: Differences, got: Answer, expected: Answer) -> None:
    if got.status != expected.status:
        found.wrong.append(f"status {got.status}, not {expected.status}")
    elif got.body != expected.body:
        before = found.tokens_lost + found.tokens_repeated
        _compare_texts(found, texts_of_body(got.body), texts_of_body(expected.body), complete=True)
        if before == found.tokens_lost + found.tokens_repeated and not found.wrong:
            found.wrong.append("the text is right, other bytes of the answer differ")


def _compare_sequences(
    found: Differences,
    got: Sequence[bytes],
    expected: Sequence[bytes],
    *,
    what: str,
    complete: bool,
) -> None:
    if list(got) == list(expected[: len(got)]) and (len(got) == len(expected) or not complete):
        return
    at = next((n for n, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), None)
    at = min(len(got), len(expected)) if at is None else at
    if not complete:  # what has not come yet is not lost
        expected = expected[: max(at, _last_known(got, expected) + 1)]
    missing, extra = Counter(expected) - Counter(got), Counter(got) - Counter(expected)
    known = set(expected)
    repeated = sum(count for part, count in extra.items() if part in known)
    foreign = sum(count for part, count in extra.items() if part not in known)
    found.tokens_lost += missing.total()
    found.tokens_repeated += repeated
    if foreign or not (missing or repeated):
        found.wrong.append(
            f"{what}: {foreign} wrong parts of {len(got)}, the first difference is after {at}"
        )


def _last_known(got: Sequence[bytes], expected: Sequence[bytes]) -> int:
    """Return the last position in `expected` of a part that came; -1 if there is none."""
    known = set(got)
    return max((n for n, part in enumerate(expected) if part in known), default=-1)
