"""Which loops of a worker stand still."""

from __future__ import annotations

from math import inf

from worker.core.stalls import STALL_S, reason

NOW = 1000.0
LONG_AGO = NOW - STALL_S - 1


def test_loops_that_go_on_are_no_reason_to_end() -> None:
    assert reason(NOW, [NOW - 1, None], [None, NOW - 1], [NOW, -inf]) is None


def test_claims_that_stand_still_are_found() -> None:
    found = reason(NOW, [NOW, LONG_AGO], [None], [NOW])
    assert found == "the claims on Redis server 1 have stood still for 61 s"


def test_output_that_is_not_sent_is_found_if_redis_renews_leases() -> None:
    assert reason(NOW, [NOW], [None, LONG_AGO], [NOW, NOW - 5]) == (
        "output of shard 1 was not sent for 61 s"
    )


def test_output_waits_for_a_redis_that_does_not_answer() -> None:
    assert reason(NOW, [NOW], [LONG_AGO], [LONG_AGO - 1]) is None
    assert reason(NOW, [NOW], [LONG_AGO], [-inf]) is None
