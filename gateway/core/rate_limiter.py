"""The limits of keys and tenants, as a gateway applies them.

Only a request whose key or tenant has limits asks Redis, once, as the last step before its job is
submitted. Its tokens are settled when its job has ended, by maintenance (the ledger); where it does
not become a job, at once. What counts as a concurrent request counts until its answer has ended; if
its gateway is lost, for `LEASE_S` more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from starlette.types import Receive, Scope, Send

from gateway.core.context import Gateway
from gateway.core.incoming import Answer, WrappedAnswer
from shared.job.errors import BudgetExceeded, RateLimited
from shared.job.job import NewJob
from shared.store.errors import StoreError
from shared.store.rate_limit_records import LEASE_S, RateLimitRecords
from shared.tenants.api_key import ApiKey
from shared.tenants.rate_limits import (
    Limited,
    Taken,
    TooMuch,
    names_of,
    rate_headers,
)

log = logging.getLogger("flotilla.gateway")

_RENEW_S = LEASE_S / 3


class RateLimiter:
    """Of one gateway process. Start `run`."""

    def __init__(self, records: RateLimitRecords, now_s: Callable[[], float]) -> None:
        """`now_s`: the time by Redis' clock, in Unix seconds."""
        self._records = records
        self._now_s = now_s
        self._running: set[tuple[str, str]] = set()  # name of limits, holder
        self._ended: list[tuple[str, str]] = []
        self._unused: list[NewJob] = []
        self._changed = asyncio.Event()

    async def take(self, limited: tuple[Limited, ...], holder: str, tokens: int) -> Taken:
        """Take a request from all these limits. `holder`: as in Taken.

        Raises RateLimited, BudgetExceeded, and StoreError.
        """
        found = await self._records.take(holder, tokens, limited, self._now_s())
        if isinstance(found, TooMuch):
            raise _refusal(found, tokens)
        self._running |= _holders(found)
        return found

    def give_back(self, job: NewJob) -> None:
        """The tokens of a job that was not queued. Its request still counts."""
        if job.reserved:
            self._unused.append(job)
            self._changed.set()

    def release(self, taken: Taken) -> None:
        """Its request has been answered."""
        if found := _holders(taken):
            self._running -= found
            self._ended += found
            self._changed.set()

    async def run(self) -> None:
        """Write what has ended, and keep what runs counted. Ends by cancellation."""
        renewed_at = time.monotonic()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RENEW_S):
                    await self._changed.wait()
            self._changed.clear()
            ended, self._ended = self._ended, []
            unused, self._unused = self._unused, []
            try:
                await self._records.release(ended)
                for job in unused:
                    await self._records.give_back(job.reserved, names_of(job.tenant, job.key))
                if time.monotonic() - renewed_at >= _RENEW_S:
                    renewed_at = time.monotonic()
                    await self._records.renew(list(self._running))
            except StoreError as error:  # after LEASE_S, or a minute, they do not count any more
                log.debug("could not write what was used of limits: %s", error)


def _holders(taken: Taken) -> set[tuple[str, str]]:
    if not taken.holder:
        return set()
    return {(each.name, taken.holder) for each in taken.limited if each.limits.concurrent_requests}


def _refusal(found: TooMuch, wanted: int) -> RateLimited:
    headers = rate_headers(found.requests_left, found.tokens_left)
    if found.is_used_up:
        error: RateLimited = BudgetExceeded(found.message(wanted), headers=headers)
    else:
        error = RateLimited(found.message(wanted), found.limit, headers)
    return error.after(found.wait_ms / 1000) if found.wait_ms else error


async def take_request(gateway: Gateway, key: ApiKey) -> None:
    """Take a request that makes a batch from the limits of its key.

    Raises RateLimited, BudgetExceeded, and StoreError.
    """
    if limited := gateway.keys.limits_of(key):
        await gateway.of(RateLimiter).take(limited, "", 0)


class LimitedAnswer(WrappedAnswer):
    """An answer that counts as a concurrent request until it has ended."""

    __slots__ = ("_limiter", "_taken")

    def __init__(self, answer: Answer, limiter: RateLimiter, taken: Taken) -> None:
        super().__init__(answer)
        self._limiter = limiter
        self._taken = taken

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._limiter.release(self._taken)
