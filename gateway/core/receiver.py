"""Receives bodies that go into the storage as they arrive, a few of each tenant at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable

from fastapi import Request
from starlette.responses import Response

from gateway.core.context import Gateway
from gateway.http.body_parts import BodyParts
from gateway.http.early_answer import EarlyAnswer
from gateway.http.error_response import error_response, to_flotilla_error
from shared.store.files import StorageQuota

_AT_ONCE = 4
"""Bodies of one tenant that this gateway receives at a time; each takes some MiB. Others wait: the
server does not read them meanwhile."""


class Receiver:
    """Receives for all tenants. There is one in a gateway."""

    def __init__(self) -> None:
        self._slots: defaultdict[str, _Slots] = defaultdict(_Slots)

    @contextlib.asynccontextmanager
    async def slot(self, tenant: str) -> AsyncIterator[None]:
        """Wait until the tenant may send another body."""
        slots = self._slots[tenant]
        slots.users += 1
        try:
            async with slots.free:
                yield
        finally:
            slots.users -= 1
            if not slots.users:
                del self._slots[tenant]


class _Slots:
    def __init__(self) -> None:
        self.free = asyncio.Semaphore(_AT_ONCE)
        self.users = 0


async def received(
    gateway: Gateway,
    request: Request,
    body: BodyParts,
    check: Callable[[int], None],
    store: Callable[[], Awaitable[Response]],
) -> Response:
    """The answer of `store`, which takes the body; or that to any error.

    The client may be far from the end of its body then. `check` gets its size before it is
    received, if that is announced, and may raise.
    """
    try:
        announced = request.headers.get("content-length", "")
        check(int(announced) if announced.isdigit() else 0)
        async with gateway.of(Receiver).slot(request.state.tenant):
            return await store()
    except Exception as error:
        if body.ended:
            raise
        answer = error_response(to_flotilla_error(error), gateway.metrics, request.scope)
        return EarlyAnswer(answer)


_MAX_FILES = 10_000
"""Of one tenant, at a time."""


def quota_of(gateway: Gateway) -> StorageQuota:
    """What each tenant may store."""
    return StorageQuota(gateway.settings.max_stored_bytes, _MAX_FILES)
