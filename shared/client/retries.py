"""When a failed attempt is repeated, and on which gateway."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic

import httpx

_AVOID_S = 5.0
"""A gateway that could not be reached is tried after the others for so long."""


@dataclass(frozen=True)
class Limits:
    """How long a call is retried. Each event or answer that arrives starts the count anew."""

    attempts: int = 100
    """Failed attempts in a row."""
    give_up_s: float = 60.0
    """Seconds since the first of them."""
    silence_s: float = 30.0
    """A stream without a byte for so long counts as broken. Gateways send a comment after 10 s of
    silence (FLOTILLA_KEEPALIVE_S); a shorter time limit of the caller's is used instead."""
    shortest_delay_s: float = 0.1
    longest_delay_s: float = 2.0
    """Between attempts, once every gateway was tried; at random between half of it and all."""
    longest_connect_delay_s: float = 0.4
    """The same where no connection could be made: a gateway that is down refuses at no cost."""


class Gateways:
    """The gateways of a fleet. Which one failed last is shared by all calls of a transport."""

    def __init__(self, urls: Sequence[str], clock: Callable[[], float] = monotonic) -> None:
        """`urls`: the preferred one first; as an OpenAI client's `base_url`, `/v1` is optional."""
        if not urls:
            raise ValueError("name at least one gateway")
        self.urls = [httpx.URL(re.sub(r"(/v1)?/?$", "", url)) for url in urls]
        for url in self.urls:
            if url.scheme not in {"http", "https"} or not url.host:
                raise ValueError(f"a gateway's URL is http://host:port, not {str(url)!r}")
        self._clock = clock
        self._unreachable_at = [-inf] * len(self.urls)

    def choose(self, after: int = -1) -> int:
        """The first gateway behind number `after` that can be expected to answer."""
        order = [(after + 1 + n) % len(self.urls) for n in range(len(self.urls))]
        avoided = self._clock() - _AVOID_S
        return next((n for n in order if self._unreachable_at[n] < avoided), order[0])

    def unreachable(self, number: int) -> None:
        """No connection to this gateway could be made."""
        self._unreachable_at[number] = self._clock()


class Retries:
    """The gateway that one call uses, and its failed attempts since it last made progress."""

    def __init__(
        self, gateways: Gateways, limits: Limits, clock: Callable[[], float] = monotonic
    ) -> None:
        self._gateways = gateways
        self._limits = limits
        self._clock = clock
        self._number = gateways.choose()
        self._failures = 0
        self._failing_since = 0.0

    @property
    def gateway(self) -> httpx.URL:
        """The base URL for the next attempt."""
        return self._gateways.urls[self._number]

    def progress(self) -> None:
        """Something new has arrived."""
        self._failures = 0

    def failed(self, error: Exception | None = None, retry_after_s: float = 0.0) -> float | None:
        """Count a failed attempt and go on to the next gateway.

        Returns the seconds to wait before the next attempt; None: give up.
        """
        now = self._clock()
        limits, longest_s = self._limits, self._limits.longest_delay_s
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            self._gateways.unreachable(self._number)
            longest_s = min(longest_s, limits.longest_connect_delay_s)
        if not self._failures:
            self._failing_since = now
        self._failures += 1
        self._number = self._gateways.choose(self._number)
        rounds = self._failures // len(self._gateways.urls)
        if not rounds:
            return 0.0  # on a gateway that was not tried yet
        longest_s = min(longest_s, limits.shortest_delay_s * 2 ** min(rounds - 1, 30))
        delay_s = longest_s * random.uniform(0.5, 1)
        delay_s = max(delay_s, min(retry_after_s, limits.longest_delay_s))
        late = now - self._failing_since + delay_s > limits.give_up_s
        return None if late or self._failures >= limits.attempts else delay_s
