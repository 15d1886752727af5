"""Delivers events to webhook endpoints: the task `webhooks` of maintenance."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter

from gateway.webhooks.ended_events import EndedEvents
from gateway.webhooks.webhook_sender import Outcome, WebhookSender
from shared.platform.logs import RareWarning
from shared.platform.tasks import end
from shared.store.interface import StoreError
from shared.store.redis.delivery_records import DeliveryRecords
from shared.store.redis.job_queue import JobQueue
from shared.webhooks.retry_schedule import next_delay_s
from shared.webhooks.webhook_delivery import Delivery, DeliveryState, Try
from shared.webhooks.webhook_endpoint import WebhookEndpoint
from shared.webhooks.webhook_signature import signed_headers

log = logging.getLogger("flotilla.webhooks")

WORK_S = 30.0
"""How long a call of the task has the work go on: longer than any other task may take, as Celery
runs them one after the other and the next call may wait for it."""
_POLL_S = 0.5
_MOST_OF_ENDPOINT = 4
_MOST_OF_TENANT = 16
_MOST = 256
"""Tries at the same time."""
_MOST_KNOWN = 10_000
_GRACE_S = 3.0
_GONE = 410


class WebhookWork:
    """The deliveries that this process has taken.

    They run on the event loop beside the tasks of Celery: a receiver that hangs delays no task, and
    a long task delays no event. Celery's beat keeps them going; if Celery ends or hangs they end.
    """

    def __init__(self, queue: JobQueue, sender: WebhookSender) -> None:
        self._queue = queue
        self._sender = sender
        self._records = DeliveryRecords(queue)
        self._ended = EndedEvents(queue, self._records)
        self._tenants: dict[str, str] = {}  # of endpoints that were seen lately
        self._tries: dict[asyncio.Task[None], tuple[str, str]] = {}  # -> endpoint, tenant
        self._changed = asyncio.Event()
        self._work: asyncio.Task[None] | None = None
        self._until = 0.0
        self._warn = RareWarning(log, 10.0)

    async def keep_working(self) -> None:
        """Go on for `WORK_S`."""
        self._until = time.monotonic() + WORK_S
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._run(), name="webhooks")

    async def close(self) -> None:
        """End. A try that does not end in time is made again by another process."""
        self._until = 0.0
        self._changed.set()
        ends_at = time.monotonic() + _GRACE_S
        for tasks in ([self._work] if self._work else [], self._tries):  # the work starts tries
            if tasks:
                await asyncio.wait(tasks, timeout=max(0.0, ends_at - time.monotonic()))
            await end(list(tasks))
        self._sender.close()

    async def _run(self) -> None:
        while time.monotonic() < self._until:
            self._changed.clear()
            try:
                shards = range(self._queue.shards)
                more = await asyncio.gather(*map(self._take_ended, shards))
                await self._start_tries()
            except StoreError as error:
                self._warn(f"webhooks pause: {error}")
                more = []
            except Exception:
                log.exception("webhooks pause")
                more = []
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 0.0 if any(more) else _POLL_S)

    async def _take_ended(self, shard: int) -> bool:
        try:
            return await self._ended.take(shard)
        except StoreError as error:  # the other shards go on
            self._warn(f"events of shard {shard} wait: {error}")
            return False

    async def _start_tries(self) -> None:
        of_endpoints = Counter(endpoint for endpoint, _ in self._tries.values())
        of_tenants = Counter(tenant for _, tenant in self._tries.values())
        room, counts = _MOST - len(self._tries), dict[str, int]()
        for endpoint_id in await self._records.due() if room > 0 else ():
            tenant = self._tenants.get(endpoint_id, "")
            left = _MOST_OF_TENANT - of_tenants[tenant] if tenant else 1
            n = min(_MOST_OF_ENDPOINT - of_endpoints[endpoint_id], left, room)
            if n > 0:
                counts[endpoint_id] = n
                room -= n
                of_tenants[tenant] += n
        if len(self._tenants) > _MOST_KNOWN:
            self._tenants.clear()
        for endpoint, delivery in await self._records.take(counts) if counts else ():
            self._tenants[endpoint.id] = endpoint.tenant
            task = asyncio.create_task(self._try(endpoint, delivery))
            self._tries[task] = endpoint.id, endpoint.tenant
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        del self._tries[task]
        self._changed.set()  # there is room for the next

    async def _try(self, endpoint: WebhookEndpoint, delivery: Delivery) -> None:
        try:
            if endpoint.disabled:
                outcome = Outcome(0, f"not sent: {endpoint.disabled}", 0)
            else:
                body, at_s = delivery.event.body(), time.time()
                headers = signed_headers(delivery.id, at_s, body, endpoint.secrets(at_s))
                outcome = await self._sender.post(endpoint.url, headers, body)
            await self._note(endpoint, delivery, outcome)
        except StoreError as error:  # the try is made again when its claim has run out
            self._warn(f"the result of a delivery could not be stored: {error}")
        except Exception:
            log.exception("a delivery to %s failed", endpoint.id)

    async def _note(self, endpoint: WebhookEndpoint, delivery: Delivery, outcome: Outcome) -> None:
        """Store what became of a try, and when the next is."""
        now_s = await self._records.now_s()
        done = Try(now_s, outcome.status, outcome.error, outcome.duration_ms)
        if outcome.delivered:
            await self._records.end_try(delivery, done, state=DeliveryState.DELIVERED)
            return
        disabled = endpoint.disabled
        if outcome.status == _GONE:
            disabled = "it has answered 410 (Gone)"
            log.warning("webhook endpoint %s is disabled: %s", endpoint.id, disabled)
        age_s = now_s - delivery.begun_at
        delay_s = next_delay_s(delivery.n_tries + 1, age_s, random.random(), outcome.retry_after_s)
        if disabled or delay_s is None:
            await self._records.end_try(
                delivery, done, state=DeliveryState.FAILED, disabled=disabled
            )
        else:
            await self._records.end_try(delivery, done, next_at=now_s + delay_s)
