"""Delays between attempts grow, stay under their cap and start again after a success."""

from __future__ import annotations

from shared.platform.backoff import Backoff


def test_delays_double_up_to_the_cap() -> None:
    backoff = Backoff(base_s=0.1, cap_s=0.5)
    for full in (0.1, 0.2, 0.4, 0.5, 0.5):
        assert full / 2 <= backoff.next_delay_s() <= full


def test_a_success_starts_again_with_the_shortest_delay() -> None:
    backoff = Backoff(base_s=0.1, cap_s=10)
    for _ in range(5):
        backoff.next_delay_s()
    backoff.reset()
    assert backoff.next_delay_s() <= 0.1


def test_a_long_outage_does_not_overflow() -> None:
    backoff = Backoff(base_s=0.1, cap_s=0.5)
    assert max(backoff.next_delay_s() for _ in range(3000)) <= 0.5
