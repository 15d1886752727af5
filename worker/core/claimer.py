"""A claimer takes jobs over one connection as long as slots are free.

A worker has one for each, so that a server that does not answer delays no other. A slot that
becomes free is its home shards' first: those of other shards decide a moment later.

Request path: `shared/store` -> Redis -> here -> `worker/core/loop.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from shared.job.job import LeasedJob
from shared.platform.backoff import Backoff
from shared.platform.logs import RareWarning
from shared.store.interface import StoreError
from worker.core.hand_backs import HandBacks
from worker.core.home_shards import HomeShards
from worker.core.queue_consumer import QueueConsumer
from worker.core.slots import SlotAccounting

log = logging.getLogger("flotilla.claimer")

# A slot may become free without a job's end (n > 1), and the KV cache empties without an event:
# decide again after this time.
_RECHECK_S = 0.25
_LEAST_WAIT_S = 0.01
"""A look may be due that this claimer can't take now, as where the pool has adapters."""
_HOME_FIRST_S = 0.02
"""Longer than a claim takes: the claimer of a home shard has taken the slot by then."""
_RECONNECT_BASE_S = 0.02
_RECONNECT_CAP_S = 0.25


class Claimer:
    """Calls `start` with each job that it claims. `claimers`: how many the worker has."""

    def __init__(
        self,
        consumer: QueueConsumer,
        slots: SlotAccounting,
        homes: HomeShards,
        hand_backs: HandBacks,
        claimers: int,
        start: Callable[[LeasedJob], None],
    ) -> None:
        self.turn_began: float | None = None
        """When it last decided what to do, on the monotonic clock; None when it has ended."""
        self._consumer = consumer
        self._slots = slots
        self._homes = homes
        self._hand_backs = hand_backs
        self._claimers = claimers
        self._start = start
        self._stopped = False
        self._warn = RareWarning(log)
        self._backoff = Backoff(_RECONNECT_BASE_S, _RECONNECT_CAP_S)
        self._changed = slots.watch()
        self._wake_up: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Claim until `stop` or cancellation."""
        try:
            while not self._stopped:
                try:
                    await self._claim_once()
                except StoreError as error:
                    self._warn("claim failed, trying again: %s", error)
                    await asyncio.sleep(self._backoff.next_delay_s())
        finally:
            self.turn_began = None
            await self._consumer.close()

    def stop(self) -> None:
        """Claim nothing more."""
        self._stopped = True
        if self._wake_up is not None:
            self._wake_up.cancel()
        self._changed.set()

    async def _claim_once(self) -> None:
        self.turn_began = time.monotonic()
        self._changed.clear()
        decision = self._slots.next_claim(self._claimers * self._consumer.parts)
        if decision.count == 0:
            await self._consumer.forward_wake_up()
            if not await self._exchange():
                await self._wait_for_change()
            return
        self._slots.requested += decision.count
        try:
            jobs = await self._consumer.claim(decision.count, left_over=decision.left_over)
        finally:
            self._slots.requested -= decision.count
        self._backoff.reset()
        for job in jobs:
            self._start(job)
        if len(jobs) < decision.count and not self._stopped:
            if self._consumer.held_back:  # until a running adapter has no jobs left
                await self._wait_for_change()
            else:  # no more jobs are queued
                await self._wait_for_wake_up()

    async def _exchange(self) -> bool:
        """Hand jobs back and claim as many others; False if there is no reason to."""
        shard = self._hand_backs.next_urgent(self._consumer.shards)
        if shard is not None or self._hand_backs.is_due:
            shard = self._consumer.next_look(shard)
        runs = [] if shard is None else await self._hand_backs.find(shard)
        if not runs:
            return False
        self._slots.requested += len(runs)  # no other claimer takes the slots
        self._slots.exchanged += len(runs)
        try:
            await self._hand_backs.hand_back(runs)
            jobs = await self._consumer.claim(len(runs), first=shard)
        finally:
            self._slots.requested -= len(runs)
            self._slots.exchanged -= len(runs)
        for job in jobs:
            self._start(job)
        return True

    async def _wait_for_change(self) -> None:
        flex_look_s = self._hand_backs.next_flex_look_s
        wait_s = _RECHECK_S if flex_look_s is None else max(_LEAST_WAIT_S, flex_look_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
        if self._consumer.shards[0] not in self._homes.shards:
            await asyncio.sleep(_HOME_FIRST_S)

    async def _wait_for_wake_up(self) -> None:
        self._wake_up = asyncio.ensure_future(self._consumer.wait_for_wake_up())
        try:
            await self._wake_up
        except asyncio.CancelledError:
            if not self._stopped:
                raise
        finally:
            self._wake_up = None
