"""What can go wrong in a call to Redis, and a call that is made until it is answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from shared.platform.backoff import Backoff
from shared.platform.logs import RareWarning

ReplyT = TypeVar("ReplyT")

log = logging.getLogger("flotilla.store")
_warn = RareWarning(log)

_RETRY_BASE_S, _RETRY_CAP_S = 0.05, 0.25


class StoreError(Exception):
    """The store could not carry out a call."""


class StoreUnavailable(StoreError):
    """A server can't be reached now; it may have carried out the call."""


class StoreTimeout(StoreUnavailable):
    """A server does not answer."""


class StoreRefused(StoreError):
    """A server has answered with an error."""


class StoreUnwritable(StoreRefused):
    """A server refuses writes for now: its memory or its disk is full, it loads its data, or it is
    a replica."""


TRANSIENT = (StoreUnavailable, StoreUnwritable)
"""After these the same call may succeed later."""


async def until_answered(
    call: Callable[[], Awaitable[ReplyT]],
    what: str,
    *,
    is_wanted: Callable[[], bool] = lambda: True,
) -> ReplyT | None:
    """What `call` returns, as soon as Redis answers; None if that is not wanted any more.

    `what`: what failed, in words for the log. Raises StoreErrors that are not TRANSIENT.
    """
    backoff = Backoff(_RETRY_BASE_S, _RETRY_CAP_S)
    while is_wanted():
        try:
            return await call()
        except TRANSIENT as error:
            _warn("%s: Redis does not answer, trying again: %s", what, error)
        await asyncio.sleep(backoff.next_delay_s())
    return None
