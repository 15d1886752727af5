"""The bytes that this process holds for clients: of bodies that come, and of answers that are read.

Only large ones are counted. They count from before they are read until their request ends, or until
`release` is called; what does not fit has to wait, and is not read meanwhile.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from typing import NamedTuple

from starlette.types import Scope

from gateway.http import memory

SMALL_BYTES = 1 << 16
"""Less is not counted: the server's own buffers for one connection have as much."""
_ANSWERS_BYTES = 32 << 20
"""Of answers that one tenant's clients have not read; one may be larger."""


class Most(NamedTuple):
    """How many bytes may be held. A single body or answer always fits."""

    all: float
    tenant: float


class Held:
    """All bytes of one kind."""

    def __init__(self, kind: str, most_waiting: float = math.inf) -> None:
        """`most_waiting`: requests that wait at a time; further ones are refused at once."""
        self._key = f"held_{kind}"  # of a request's `state`: the bytes that it holds
        self._of: Counter[str] = Counter()
        self._waiting: set[asyncio.Event] = set()
        self._most_waiting = most_waiting

    def fits(self, scope: Scope, n_bytes: int, most: Most) -> bool:
        """Whether a request may hold so many bytes, in place of those that it holds."""
        state = scope.setdefault("state", {})
        own, of_tenant = state.get(self._key, 0), self._of[state.get("tenant", "")]
        others, tenants_others = self._of.total() - own, of_tenant - own
        return (not others or others + n_bytes <= most.all) and (
            not tenants_others or tenants_others + n_bytes <= most.tenant
        )

    async def room(
        self, scope: Scope, n_bytes: int, most: Most, timeout_s: float | None = None
    ) -> None:
        """Wait until it fits. Raises TimeoutError."""
        if self.fits(scope, n_bytes, most):
            return
        if len(self._waiting) >= self._most_waiting:
            raise TimeoutError
        changed = asyncio.Event()
        self._waiting.add(changed)
        try:
            async with asyncio.timeout(timeout_s):
                while not self.fits(scope, n_bytes, most):
                    changed.clear()
                    await changed.wait()
        finally:
            self._waiting.discard(changed)

    def hold(self, scope: Scope, n_bytes: int) -> None:
        """Count so many bytes as held by a request, in place of those before."""
        state = scope.setdefault("state", {})
        before, tenant = state.get(self._key, 0), state.get("tenant", "")
        state[self._key] = n_bytes
        self._of[tenant] += n_bytes - before
        if not self._of[tenant]:
            del self._of[tenant]
        if n_bytes < before:
            for each in self._waiting:
                each.set()

    def has(self, scope: Scope) -> bool:
        """Whether the request holds any."""
        return self._key in scope.get("state", ())

    def release(self, scope: Scope) -> None:
        """The request needs them no more."""
        if self.has(scope):
            self.hold(scope, 0)
            memory.return_soon()
            del scope["state"][self._key]


BODIES = Held("bodies", most_waiting=64)
_ANSWERS = Held("answers")
_MOST_ANSWERS = Most(math.inf, _ANSWERS_BYTES)


async def hold_answer(scope: Scope, n_bytes: int) -> None:
    """Wait until so many bytes may be read for the answer to this request, and count them.

    Call it again with the size of the answer itself, if that is less.
    """
    if n_bytes > SMALL_BYTES or _ANSWERS.has(scope):
        await _ANSWERS.room(scope, n_bytes, _MOST_ANSWERS)
        _ANSWERS.hold(scope, n_bytes)


def release(scope: Scope) -> None:
    """The request has ended."""
    BODIES.release(scope)
    _ANSWERS.release(scope)
