"""The checks of a run on a Redis Cluster: what must not be is named, a good run has nothing."""

from __future__ import annotations

from typing import Any

import pytest

from load_tests.faults.checked_call import CheckedCall
from load_tests.faults.cluster.injection import Fault, Injection
from load_tests.faults.cluster.run import ClusterResult
from load_tests.oracle.observation import End
from tests.unit.load_tests.test_kills import WORDS, seen_stream, streamed

KILLED = Injection(Fault.KILL, frozenset({0}), began=100.0, ended=102.0)
MOVED = Injection(Fault.MOVE, frozenset({0}), began=100.0, ended=102.0)


def result(
    injection: Injection, *, shard: int = 0, end: End = End.COMPLETE, code: str = "", at: Any = ()
) -> ClusterResult:
    """A run with one complete answer, and one such."""
    seen = seen_stream(streamed() if end is End.COMPLETE else streamed(WORDS[:2], done=False), end)
    seen.job_id, seen.code, seen.at = f"job_{shard:03x}{'0' * 24}", code, list(at)
    return ClusterResult([injection], [CheckedCall(seen_stream(streamed())), CheckedCall(seen)])


@pytest.mark.parametrize(
    ("injection", "end", "code", "wrong"),
    [
        (KILLED, End.COMPLETE, "", ""),
        (KILLED, End.FAILED, "stream_reset", ""),
        (MOVED, End.FAILED, "stream_reset", "not because of lost writes"),
        (KILLED, End.FAILED, "server_error", "not because of lost writes"),
        (MOVED, End.HUNG, "", "hung"),
        (MOVED, End.CUT, "", "without an error"),
        (MOVED, End.REFUSED, "503", "refused"),
    ],
)
def test_ends(injection: Injection, end: End, code: str, wrong: str) -> None:
    found = result(injection, end=end, code=code).failures()
    assert len(found) == bool(wrong)
    assert wrong in "".join(found)


@pytest.mark.parametrize(
    ("shard", "at", "wrong"),
    [
        (0, (99.0, 100.1, 103.0, 103.1), ""),  # 2.9 s: 0.9 s beyond the time without a master
        (0, (99.0, 100.1, 103.2), "beyond the time without a master"),
        (0, (100.1, 110.0), ""),  # it had not begun
        (1, (99.0, 99.9, 100.3, 100.8), ""),
        (1, (99.9, 100.5), "of other shards"),
        (1, (99.9, 100.0, 102.1, 109.0), "of other shards"),
        (1, (99.9, 102.1, 109.0), "of other shards"),
    ],
)
def test_pauses(shard: int, at: tuple[float, ...], wrong: str) -> None:
    found = result(MOVED, shard=shard, at=at).failures()
    assert len(found) == bool(wrong)
    assert wrong in "".join(found)
    assert result(MOVED, shard=shard, at=at).failures(pauses=False) == []
