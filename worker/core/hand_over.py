"""Jobs that a worker gives back before they have ended: as it drains, as a better lane needs room,
or as it can't finish them. Their logs stay: the worker that claims one continues its answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from shared.platform.logs import RareWarning
from shared.store.errors import TRANSIENT, StoreError
from shared.store.queue import HeldJob
from worker.core.claim import Claims, Room, cheapest, yieldable
from worker.core.membership import Membership
from worker.core.output import Output
from worker.core.publish import Publisher

log = logging.getLogger("flotilla.worker")

GiveBack = Literal["handed_over", "requeued"]
_TIMEOUT_S = 10.0
_RETRY_S = 0.1


def how_many(room: int, waiting: int, jobs: int, sequences: int) -> int:
    """How many of a worker's jobs, which have so many sequences together, may move now.

    `room`: of other workers; `waiting`: jobs that wait, which take some of it.
    """
    per_job = max(1.0, sequences / jobs) if jobs else 1.0
    return min(jobs, int(max(0, room - waiting) / per_job))


class HandOver:
    """Gives jobs back. `give_up(output, reason)` ends what runs of a job here, and sends no more of
    it. `reason` stands in the job's history."""

    def __init__(
        self, member: Membership, publisher: Publisher, give_up: Callable[[Output, str], None]
    ) -> None:
        self._queue, self._pool, self._worker = member
        self._publisher = publisher
        self._give_up = give_up
        self._warn = RareWarning(log)

    async def give_back(self, outputs: Sequence[Output], event: GiveBack, reason: str) -> None:
        """Abort jobs and give them back: `handed_over` keeps their places, and `requeued` counts an
        attempt that has added nothing.

        If Redis does not answer for 10 s, the next claim gives them back, or their lease ends.
        """
        if not outputs:
            return
        for output in outputs:
            output.discarded = True
            self._give_up(output, reason)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                states = await self._repeat([output.job for output in outputs], event, reason)
        except (StoreError, TimeoutError) as error:
            log.warning("jobs not given back: others get them later", exc_info=error)
        else:
            for job_id, state in states.items():
                log.info(
                    "job given back (%s), it is %s now", reason, state, extra={"job_id": job_id}
                )
        finally:
            for output in outputs:
                self._publisher.of(output).remove(output)

    async def _repeat(
        self, jobs: Sequence[HeldJob], event: GiveBack, reason: str
    ) -> Mapping[str, str]:
        while True:
            try:
                return await self._queue.give_back(jobs, event, reason)
            except TRANSIENT as error:
                self._warn("jobs not given back, trying again: %s", error)
                await asyncio.sleep(_RETRY_S)

    async def make_room(self, claims: Claims, room: Room, shard: int, count: int) -> None:
        """So many jobs of better lanes wait: jobs of the lane flex make room for them."""
        chosen = yieldable(self._publisher.shards[shard])[:count]
        if chosen and not room.draining:
            await self.give_back(chosen, "handed_over", "handed_back")
            room.exchanged += len(chosen)
            claims.wake(len(chosen))

    async def move_jobs(self, sequences: int) -> None:
        """Hand as many jobs over as other workers have room for now. `sequences`: of the engine,
        which the worker's jobs have together."""
        outputs = self._publisher.outputs()
        try:
            free = await self._queue.free_room(self._pool, but_of=self._worker)
        except StoreError as error:
            self._warn("jobs not handed over, trying again: %s", error)
        else:
            count = how_many(free.room, free.waiting, len(outputs), sequences)
            await self.give_back(cheapest(outputs)[:count], "handed_over", "handed_over")
