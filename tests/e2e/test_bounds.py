"""Many more jobs than the bounds allow, at a small size; `load_tests overload` has 10,000."""

from __future__ import annotations

from pathlib import Path

from load_tests.overload.bounded_run import BoundedRun


def test_what_is_accepted_is_done_and_what_is_refused_says_why(tmp_path: Path) -> None:
    # However slow the clients are, what is kept fills Redis; however fast, what waits does.
    result = BoundedRun(tmp_path, jobs=2000, megabytes=26, kept_s=300).run(print)
    assert result.problems == []
    assert result.refused["redis_memory_full"] > 0
    assert result.accepted + sum(result.refused.values()) == 2000
