"""How much a key or a tenant may use, and what is left of it. Pure.

A rate is a token bucket (RFC 2697 describes one): it holds what a minute allows, and is refilled
continuously. Tokens are taken by an estimate when a request is accepted, from rates and from
budgets; when its job has ended, the bucket gets the difference to the ledger's count, and may hold
less than nothing then, and the budget has that count in place of the estimate. What was taken for a
request that was lost before its job was queued counts in budgets until the day is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

MOST = 10**12
"""Of any limit."""


class Limit(StrEnum):
    """The kinds of limits, in the order of the fields of RateLimits."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENT = "concurrent_requests"
    DAY = "tokens_per_day"
    MONTH = "tokens_per_month"


class RateLimits(NamedTuple):
    """The limits of one key, or of all keys of a tenant together; 0: no limit."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    """Of prompts and answers."""
    concurrent_requests: int = 0
    """Requests whose clients wait for an answer."""
    tokens_per_day: int = 0
    """From midnight to midnight, UTC."""
    tokens_per_month: int = 0
    """Of the calendar, UTC."""


NO_LIMITS = RateLimits()


class UsedTokens(NamedTuple):
    """What a key or a tenant has used of its budgets: tokens of prompts and answers, UTC."""

    tokens_today: int
    tokens_this_month: int


class Limited(NamedTuple):
    """Who has limits."""

    name: str
    """`k:` and the id of a key, or `t:` and a tenant; the ledger's totals have the same names."""
    limits: RateLimits


def key_name(key_id: str) -> str:
    """The name of a key's limits."""
    return f"k:{key_id}"


def tenant_name(tenant: str) -> str:
    """The name of a tenant's limits."""
    return f"t:{tenant}"


def names_of(tenant: str, key_id: str) -> Sequence[str]:
    """The names of the limits that the use of a key counts for. `key_id`: empty: it stands in the
    settings."""
    return (tenant_name(tenant), key_name(key_id)) if key_id else (tenant_name(tenant),)


def limited_by(
    key_id: str, own: RateLimits, tenant: str, all_own: RateLimits
) -> tuple[Limited, ...]:
    """The limits of a key, and of all keys of its tenant together; empty if there are none."""
    both = Limited(key_name(key_id), own), Limited(tenant_name(tenant), all_own)
    return tuple(each for each in both if each.limits != NO_LIMITS)


class Left(NamedTuple):
    """What a rate has left."""

    limit: int
    """A minute."""
    left: int
    """Less than 0: owed."""

    @property
    def full_in_ms(self) -> int:
        """Time until nothing of it is used."""
        return -(-(self.limit - self.left) * 60_000 // self.limit)


class Taken(NamedTuple):
    """What was taken for a request of those that it counts for."""

    holder: str
    """The name under which it counts as a concurrent request; empty: it does not."""
    tokens: int
    limited: Sequence[Limited]
    requests_left: Left | None
    """Of the rate that has least left; None: there is no such limit."""
    tokens_left: Left | None
    day: str
    """Of UTC, on which it was."""

    @property
    def reserved(self) -> str:
        """As its job has it (`read_reserved`)."""
        return f"{self.tokens} {self.day}"

    def headers(self) -> list[tuple[bytes, bytes]]:
        """OpenAI's headers for what is left."""
        return rate_headers(self.requests_left, self.tokens_left)


class TooMuch(NamedTuple):
    """The limit that a request is refused by."""

    limit: Limit
    of: Limited
    left: int
    wait_ms: int
    """Time until there is enough; 0: not known."""
    requests_left: Left | None
    tokens_left: Left | None

    @property
    def is_used_up(self) -> bool:
        """It is a budget that has nothing left. Else it may be that requests use less than was
        reserved for them."""
        return self.limit in (Limit.DAY, Limit.MONTH) and self.wait_ms > 0

    def message(self, wanted: int) -> str:
        """What the client is told. `wanted`: the tokens that its request was estimated at."""
        kind, name = self.of.name.split(":", 1)
        whose = "this API key" if kind == "k" else f"the tenant {name!r}"
        most = self.of.limits[list(Limit).index(self.limit)]
        found = f"Limit reached for {_WORDS[self.limit]} of {whose}: limit {most}, left {self.left}"
        if self.limit is Limit.TOKENS:
            found += f", requested about {wanted}"
        elif self.limit in (Limit.DAY, Limit.MONTH) and not self.wait_ms:
            found += " beside what is reserved for requests that have not ended"
        when = f" Try again in {duration_text(self.wait_ms)}." if self.wait_ms else ""
        return f"{found}.{when}"


_WORDS = {
    Limit.REQUESTS: "requests per minute",
    Limit.TOKENS: "tokens per minute",
    Limit.CONCURRENT: "concurrent requests",
    Limit.DAY: "tokens per day",
    Limit.MONTH: "tokens per month",
}


def read_reserved(text: str) -> tuple[int, str]:
    """The tokens that were taken for a job, and the day; the inverse of `Taken.reserved`."""
    tokens, _, day = text.partition(" ")
    return int(tokens), day


def least(found: Sequence[Left]) -> Left | None:
    """The rate with the smallest part left."""
    return min(found, key=lambda each: each.left / each.limit, default=None)


def rate_headers(requests: Left | None, tokens: Left | None) -> list[tuple[bytes, bytes]]:
    """`x-ratelimit-*` as OpenAI sends them; without a limit there are none."""
    found = []
    for what, rate in (("requests", requests), ("tokens", tokens)):
        if rate is not None:
            for word, value in (
                ("limit", str(rate.limit)),
                ("remaining", str(max(0, rate.left))),
                ("reset", duration_text(rate.full_in_ms)),
            ):
                found.append((f"x-ratelimit-{word}-{what}".encode(), value.encode()))
    return found


def duration_text(ms: int) -> str:
    """As OpenAI writes one: `120ms`, `8.64s`, `6m0s`, `24h0m0s`."""
    if ms < 1000:
        return f"{ms}ms"
    seconds, ms = divmod(ms, 1000)
    if seconds < 60:
        return f"{seconds}.{ms:03}".rstrip("0").rstrip(".") + "s"
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}s" if hours else f"{minutes}m{seconds}s"


_CHARS_PER_TOKEN = 4
_UNKNOWN_OUTPUT = 256
"""Tokens of an answer whose request does not limit it."""


def estimate(body_bytes: int, context: int, most_output: int | None) -> int:
    """The tokens of a request, before it is tokenized.

    `context`: of the model in tokens, 0: not known; `most_output`: what the request allows its
    answer, None: it does not say.
    """
    prompt = body_bytes // _CHARS_PER_TOKEN + 1
    output = _UNKNOWN_OUTPUT if most_output is None else most_output
    return min(MOST, (min(prompt, context) if context else prompt) + output)
