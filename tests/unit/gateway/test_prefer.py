"""The header `Prefer`: which preferences are known, and what is ignored."""

from __future__ import annotations

import pytest

from gateway.core.call_options import call_headers
from gateway.http.prefer import Prefer, parse_prefer
from shared.job.errors import BadRequest


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([b"respond-async"], Prefer(True)),
        ([b"Respond-Async"], Prefer(True)),
        ([b"wait=5"], Prefer(False, 5)),
        ([b'Wait = "5"'], Prefer(False, 5)),
        ([b"respond-async, wait=10"], Prefer(True, 10)),
        ([b"respond-async", b"wait=10"], Prefer(True, 10)),
        ([b"wait=1, wait=2"], Prefer(False, 1)),
        ([b"wait=0"], Prefer(False, 0)),
        ([b'foo; bar="a, respond-async", respond-async; x=1'], Prefer(True)),
        ([b"return=minimal"], None),
        ([b"wait=-1"], None),
        ([b"wait=1.5"], None),
        ([b"wait=123456789"], None),
        ([b'foo="respond-async, wait=1"'], None),
        ([b""], None),
        ([b'"'], None),
        ([b"\xff,,;="], None),
        ([], None),
    ],
)
def test_preferences(values: list[bytes], expected: Prefer | None) -> None:
    assert parse_prefer(values) == expected


def test_a_quote_without_an_end() -> None:
    assert parse_prefer([b'wait=1, "' + b'\\"' * 15_000]) == Prefer(False, 1)


@pytest.mark.parametrize(
    ("prefer", "in_time", "applied"),
    [
        (Prefer(True), False, b"respond-async"),
        (Prefer(True), True, b""),
        (Prefer(True, 3), False, b"respond-async, wait=3"),
        (Prefer(True, 3), True, b"wait=3"),
        (Prefer(False, 3), False, b"wait=3"),
    ],
)
def test_what_was_applied(prefer: Prefer, in_time: bool, applied: bytes) -> None:
    assert prefer.applied(in_time=in_time) == applied


def test_only_prefer_may_be_there_twice() -> None:
    twice = [(b"prefer", b"wait=1"), (b"prefer", b"respond-async")]
    assert call_headers(twice).prefer == Prefer(True, 1)
    assert call_headers([(b"prefer", b"x")]).prefer is None
    with pytest.raises(BadRequest, match="`idempotency-key` is there twice"):
        call_headers([*twice, (b"idempotency-key", b"a"), (b"idempotency-key", b"a")])
