"""The worker's control channel: jobs that Redis has assigned to it, jobs that were ended, and
operator calls.

A job that finds an advertised slot is leased by the script that submits it and published here; all
other jobs are claimed (claimer.py). Messages are lost while the subscription is not connected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable

from shared.job.frames import ControlKind, decode_control
from shared.job.job import LeasedJob, checked_shard
from shared.platform.malformed import MalformedValues
from shared.store.interface import StoreError
from shared.store.redis.scripts.acquire import parse_jobs
from worker.core.membership import Membership
from worker.core.runs import Runs
from worker.core.slot_adverts import AdvertisedSlots

log = logging.getLogger("flotilla.control")

# A message that was published longer ago has arrived, or is lost.
_DELIVERY_S = 0.25
_REMEMBERED = 256


class ControlChannel:
    """Handles the messages of one worker's control channel.

    `start(job)` is called for each assigned job, `look(shard)` where a job waits that one of the
    lane flex may make room for.
    """

    def __init__(
        self,
        member: Membership,
        advertised_slots: AdvertisedSlots,
        runs: Runs,
        start: Callable[[LeasedJob], None],
        look: Callable[[int], None],
        malformed: MalformedValues,
    ) -> None:
        self.operator_calls: asyncio.Queue[tuple[str, str, bytes]] = asyncio.Queue()
        """Id, action and options of each operator call."""
        self._received: deque[str] = deque(maxlen=_REMEMBERED)
        self._member = member
        self._advertised_slots = advertised_slots
        self._runs = runs
        self._start = start
        self._look = look
        self._malformed = malformed
        self._rejecting: asyncio.Task[None] | None = None
        self._was_connected = False

    def on_message(self, message: bytes) -> None:
        """Handle one message. A malformed one is skipped and counted."""
        try:
            kind, parts = decode_control(message)
            jobs = parse_jobs(*parts) if kind is ControlKind.JOBS else []
            ended_id = parts[0].decode() if kind is ControlKind.DROP else ""
            shard = checked_shard(parts[0].decode()) if kind is ControlKind.LOOK else None
            if kind is ControlKind.OPERATE:
                call = parts[0].decode(), parts[1].decode(), parts[2]
                if call[0] not in self._received:  # the gateway repeats it until it has the answer
                    self._received.append(call[0])
                    self.operator_calls.put_nowait(call)
        except Exception as error:
            # Jobs in it are returned to the queue when their leases expire.
            self._malformed.skip("control message", f"{len(message)} bytes", error)
            return
        for job in jobs:
            self._advertised_slots.job_assigned(job.shard)
            self._start(job)
        if shard is not None:
            self._look(shard)
        if ended_id:
            # Redis would refuse the job's next write anyway; the engine need not go on until then.
            self._runs.abort(ended_id)

    def on_reconnect(self) -> None:
        """The channel is subscribed (again): messages may have been lost before."""
        self.stop()
        # Without a subscription no job is leased to advertised slots (submit.lua).
        rejecting = self._reject_unreceived(has_advertised=self._was_connected)
        self._rejecting = asyncio.create_task(rejecting, name="reject_unreceived")
        self._was_connected = True

    def stop(self) -> None:
        """Reject no more jobs."""
        if self._rejecting is not None:
            self._rejecting.cancel()

    async def _reject_unreceived(self, *, has_advertised: bool) -> None:
        queue, pool, worker_id, lease_s = self._member
        if has_advertised:
            self._advertised_slots.pause()
            with contextlib.suppress(StoreError):
                await queue.withdraw_slots(pool, worker_id, lease_s)
        await asyncio.sleep(2 * _DELIVERY_S)
        # Two turns of the event loop: if it was blocked, messages that have arrived are read first.
        for _ in range(2):
            await asyncio.sleep(0)
        if has_advertised:
            self._advertised_slots.reset()
        with contextlib.suppress(StoreError):  # then their leases expire
            known = self._runs.known_jobs()
            lost = await queue.reject_unreceived(pool, worker_id, known, _DELIVERY_S)
            for job_id, state in lost.items():
                log.warning(
                    "returned a job whose assignment was not received, it is %s now",
                    state,
                    extra={"job_id": job_id},
                )
