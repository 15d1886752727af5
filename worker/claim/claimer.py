"""A claimer: takes jobs from one Redis server as long as slots are free, and hears of new ones.

A worker has one for each server, so that one that is away does not keep the others waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from shared.platform.backoff import Backoff
from shared.platform.redis_client import RedisError
from shared.protocol.job import LeasedJob
from worker.claim.admission import Decision
from worker.claim.queue_consumer import QueueConsumer

log = logging.getLogger("flotilla.claimer")

# A slot may come free without a run ending (n > 1), and KV use falls unannounced: look again then.
_LOOK_AGAIN_S = 0.25
_RECONNECT_BASE_S = 0.02
_RECONNECT_CAP_S = 1.0


class Claimer:
    """`decide()` says how many jobs to claim now, `start` takes them.

    `asked` is how many may come of the claim that is under way.
    """

    def __init__(
        self,
        claims: QueueConsumer,
        decide: Callable[[], Decision],
        start: Callable[[LeasedJob], None],
    ) -> None:
        self.asked = 0
        self._claims = claims
        self._decide = decide
        self._start = start
        self._ended = False
        self._backoff = Backoff(_RECONNECT_BASE_S, _RECONNECT_CAP_S)
        self._changed = asyncio.Event()
        self._wake_ups: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Claim until the end; ends by cancellation as well."""
        try:
            while not self._ended:
                try:
                    await self._turn()
                except (RedisError, OSError) as error:
                    log.warning("can't claim: %s", error)
                    await asyncio.sleep(self._backoff.next_delay_s())
        finally:
            await self._claims.close()

    def look(self) -> None:
        """There may be a free slot."""
        self._changed.set()

    def end(self) -> None:
        """Claim nothing more."""
        self._ended = True
        if self._wake_ups is not None:
            self._wake_ups.cancel()
        self._changed.set()

    async def _turn(self) -> None:
        self._changed.clear()
        decision = self._decide()
        if decision.count == 0:
            await self._claims.pass_on()
            await self._wait_for_change()
            return
        self.asked = decision.count
        try:
            jobs = await self._claims.take(decision.count, spare=decision.spare)
        finally:
            self.asked = 0
        self._backoff.reset()
        for job in jobs:
            self._start(job)
        if len(jobs) < decision.count:  # no more was waiting
            await self._wait_for_wake_ups()

    async def _wait_for_change(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_AGAIN_S):
                await self._changed.wait()

    async def _wait_for_wake_ups(self) -> None:
        self._wake_ups = asyncio.ensure_future(self._claims.wake_ups())
        try:
            await self._wake_ups
        except asyncio.CancelledError:
            if not self._ended:
                raise
        finally:
            self._wake_ups = None
