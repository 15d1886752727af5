"""How long a call waits between its attempts."""

from __future__ import annotations

import httpx
import pytest

from shared.client.retries import Gateways, Limits, Retries

REFUSED = httpx.ConnectError("refused")
BROKEN = httpx.ReadError("broken")


class Clock:
    """Time passes only by the delays."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("error", "longest_s"),
    [(REFUSED, Limits.longest_connect_delay_s), (BROKEN, Limits.longest_delay_s), (None, 2.0)],
)
def test_the_longest_delay_is_short_while_gateways_refuse_connections(
    error: Exception | None, longest_s: float
) -> None:
    clock = Clock()
    retries = Retries(Gateways(["http://a", "http://b"], clock), Limits(), clock)
    delays = []
    while (delay_s := retries.failed(error)) is not None and clock.now < 30:
        delays.append(delay_s)
        clock.now += delay_s
    assert delays[0] == 0.0  # at once on the other gateway
    assert longest_s / 2 < max(delays) <= longest_s


def test_a_call_outlasts_gateways_that_are_away_for_half_a_minute() -> None:
    clock = Clock()
    retries = Retries(Gateways(["http://a"], clock), Limits(), clock)
    while (delay_s := retries.failed(REFUSED)) is not None:
        clock.now += delay_s
    assert 20 < clock.now <= Limits.give_up_s
