"""Delivers events to webhook endpoints: the task `webhooks` of maintenance."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from functools import partial

from gateway.webhooks.webhook_sender import Outcome, WebhookSender
from shared.job.errors import StreamReset
from shared.job.responses import response_id
from shared.platform.logs import RareWarning
from shared.platform.tasks import end, run_together
from shared.store.answers import final_response
from shared.store.ended import Ended, EndedStreams, Reader
from shared.store.errors import StoreError
from shared.store.health import Health
from shared.store.queue import Queue
from shared.store.webhooks import MOST_PENDING, Address, Deliveries, Taken, WebhookRecords
from shared.webhooks.retry_schedule import next_delay_s
from shared.webhooks.webhook_delivery import Delivery, DeliveryState, Event, Try, TryResult
from shared.webhooks.webhook_endpoint import WebhookEndpoint
from shared.webhooks.webhook_signature import signed_headers

log = logging.getLogger("flotilla.webhooks")

WORK_S = 30.0
"""How long a call of the task has the work go on: longer than any other task may take, as Celery
runs them one after the other and the next call may wait for it."""
_POLL_S = 0.5
_PAUSE_S = 0.05
"""Between two rounds at least: what ends meanwhile is one call of Redis."""
_MOST_OF_ENDPOINT = 4
_MOST_OF_TENANT = 16
_MOST = 256
"""Tries at the same time."""
_AT_ONCE = 500
"""Entries of a shard that are read in one round."""
_LEAST_MADE, _MOST_MADE = 50, 500
"""Deliveries that are made of them; in between, twice what was tried since the last round."""
_MOST_AHEAD = 64
"""Due deliveries of one endpoint that are taken before there is room for their tries."""
_MOST_KNOWN = 10_000
_GRACE_S = 3.0
_GONE = 410
_MOST_PARSED_BYTES = 4 << 20
"""Of a response that is looked at; a longer one counts as completed."""
_OF_RESPONSES = {"expired": "failed"}
"""States of jobs that responses have another word for."""


class _Line:
    """The deliveries to one endpoint that this process has taken."""

    def __init__(self, endpoint: WebhookEndpoint) -> None:
        self.endpoint = endpoint
        self.waiting: deque[Taken] = deque()
        self.tries: set[asyncio.Task[None]] = set()
        self.ended = 0
        """Tries since due deliveries were taken."""
        self.has_more = False
        """There may be more that are due."""


class WebhookWork:
    """The deliveries that this process has taken.

    They run on the event loop beside the tasks of Celery: a receiver that hangs delays no task, and
    a long task delays no event. Celery's beat keeps them going; if Celery ends or hangs they end.

    Redis is called in rounds: they store all results, make deliveries of what has ended, and take
    those that are due. What a process had taken that is killed is tried again by another one.
    """

    def __init__(self, queue: Queue, sender: WebhookSender) -> None:
        self._queue = queue
        self._sender = sender
        self._endpoints = WebhookRecords(queue)
        self._ended = EndedStreams(queue, Reader.WEBHOOKS)
        self._deliveries = Deliveries(queue)
        self._health = Health(queue)
        self._limit = _LEAST_MADE
        self._has_more = False
        """There may be more that has ended."""
        self._tried: list[Taken] = []
        self._lines: dict[str, _Line] = {}
        self._blocked: dict[_Line, None] = {}  # with deliveries that had no room for their tries
        self._n_tries = 0
        self._of_tenants = Counter[str]()
        self._redis_ahead_s = 0.0  # Redis' clock less the monotonic one
        self._next_round = asyncio.Event()
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
        self._next_round.set()
        ends_at = time.monotonic() + _GRACE_S
        await _end_by([self._work] if self._work else [], ends_at)  # it starts tries
        await _end_by(self._tries(), ends_at)
        with contextlib.suppress(StoreError):
            await self._settle()
        self._sender.close()

    def _tries(self) -> Sequence[asyncio.Task[None]]:
        return [task for line in self._lines.values() for task in line.tries]

    async def _run(self) -> None:
        while time.monotonic() < self._until:
            self._next_round.clear()
            try:
                await self._settle()
                await self._read()
                now_s, due = await self._deliveries.due()
                self._redis_ahead_s = now_s - time.monotonic()
                await self._take(due)
                if self._has_more and not self._n_tries:
                    self._next_round.set()
            except StoreError as error:
                self._warn(f"webhooks pause: {error}")
            except Exception:
                log.exception("webhooks pause")
            await asyncio.sleep(_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._next_round.wait(), _POLL_S)
        with contextlib.suppress(StoreError):
            await self._settle()

    async def _settle(self) -> None:
        """Store all results; where that fails they are stored in the next round."""
        tried = self._tried[:]
        self._limit = min(max(_LEAST_MADE, 2 * len(tried)), _MOST_MADE)
        gone = {
            each.endpoint: each.result.disabled
            for each in tried
            if each.result and each.result.disabled and not each.endpoint.disabled
        }
        for endpoint, why in gone.items():
            log.warning("webhook endpoint %s is disabled: %s", endpoint.id, why)
            await self._endpoints.disable(endpoint, why)
        await self._deliveries.end(tried)
        del self._tried[: len(tried)]

    async def _read(self) -> None:
        positions = await self._ended.positions()
        shards = range(self._queue.shards)
        more = (self._read_shard(each, positions.get(each, "")) for each in shards)
        self._has_more = any(await run_together(*more))

    async def _read_shard(self, shard: int, after: str) -> bool:
        """Make deliveries of what has ended; whether there may be more."""
        try:
            ended = await self._ended.read(shard, after, _AT_ONCE)
            if not ended:
                return False
            used, found = await self._deliveries_of(ended)
            upto = ended[used - 1].entry
            if found:
                await self._health.look()
            dropped = await self._deliveries.add(shard, after, upto, found)
        except StoreError as error:  # the other shards go on
            self._warn(f"events of shard {shard} wait: {error}")
            return False
        if dropped:
            log.warning("dropped %d events: %d wait, or Redis is full", dropped, MOST_PENDING)
        return used < len(ended) or used == _AT_ONCE

    async def _deliveries_of(
        self, ended: Sequence[Ended]
    ) -> tuple[int, list[tuple[WebhookEndpoint, Event]]]:
        """What is to be delivered of what has ended, and how much of that was looked at."""
        tenants = {each.owner.tenant for each in ended if each.notify}
        of_tenants = await self._endpoints.documents.of_tenants(tenants)
        found: list[tuple[WebhookEndpoint, Event]] = []
        for used, each in enumerate(ended, 1):
            named = each.notify.split(" ")[1:]
            endpoints = of_tenants.get(each.owner.tenant, ()) if each.notify else ()
            chosen = [e for e in endpoints if not e.disabled and (not named or e.id in named)]
            if chosen:
                event = await _event_of(self._queue, each)
                found += [(e, event) for e in chosen if named or event.type in e.event_types]
            if len(found) >= self._limit:
                return used, found
        return len(ended), found

    async def _take(self, due: Sequence[Address]) -> None:
        counts: dict[Address, int] = {}
        left, of_tenants = _MOST - self._n_tries, Counter[str]()
        for each in due:
            line = self._lines.get(each.endpoint)
            n = min(self._room(line) - of_tenants[each.tenant] if line else 1, left)
            if n > 0:
                left -= n
                of_tenants[each.tenant] += n
                counts[each] = n + (min(line.ended, _MOST_AHEAD) if line else 0)
        taken = await self._deliveries.take(counts) if counts else []
        found = Counter(each.endpoint.id for each in taken)
        self._begin(taken)
        for each, count in counts.items():
            if line := self._lines.get(each.endpoint):
                line.ended, line.has_more = 0, found[each.endpoint] == count

    def _room(self, line: _Line) -> int:
        """How many more tries an endpoint may have."""
        of_tenant = _MOST_OF_TENANT - self._of_tenants[line.endpoint.tenant]
        return min(_MOST_OF_ENDPOINT - len(line.tries), of_tenant, _MOST - self._n_tries)

    def _begin(self, taken: Sequence[Taken]) -> None:
        if len(self._lines) > _MOST_KNOWN:
            self._lines = {
                each: line for each, line in self._lines.items() if line.tries or line.waiting
            }
        for each in taken:
            line = self._lines.setdefault(each.endpoint.id, _Line(each.endpoint))
            line.endpoint = each.endpoint
            line.waiting.append(each)
            self._start(line)

    def _start(self, line: _Line) -> None:
        """Start a task that tries what waits; without room for it, once another one has ended."""
        if self._room(line) <= 0:
            self._blocked[line] = None
            return
        task = asyncio.create_task(self._work_off(line))
        line.tries.add(task)
        self._n_tries += 1
        self._of_tenants[line.endpoint.tenant] += 1
        task.add_done_callback(partial(self._done, line))

    def _done(self, line: _Line, task: asyncio.Task[None]) -> None:
        line.tries.discard(task)
        self._n_tries -= 1
        self._of_tenants -= Counter((line.endpoint.tenant,))
        if line.has_more or (self._has_more and not self._n_tries):
            line.has_more = False
            self._next_round.set()
        if time.monotonic() < self._until:  # else this process ends
            self._start_blocked()

    def _start_blocked(self) -> None:
        for line in list(self._blocked):
            if not line.waiting:
                del self._blocked[line]
            elif self._room(line) > 0:
                self._start(line)
                return

    async def _work_off(self, line: _Line) -> None:
        """Try what waits, one delivery after the other."""
        while line.waiting:
            taken = line.waiting.popleft()
            try:
                if time.monotonic() < taken.begin_by:
                    await self._try(line, taken)
            except Exception:
                log.exception("a delivery to %s failed", line.endpoint.id)

    async def _try(self, line: _Line, taken: Taken) -> None:
        endpoint, delivery = line.endpoint, taken.delivery
        if endpoint.disabled:
            outcome = Outcome(0, f"not sent: {endpoint.disabled}", 0)
        else:
            body, at_s = delivery.event.body(), time.time()
            headers = signed_headers(delivery.id, at_s, body, endpoint.secrets(at_s))
            outcome = await self._sender.post(endpoint.url, headers, body)
        taken.result = _result(endpoint, delivery, outcome, self._now_s())
        if taken.result.disabled:
            line.endpoint = endpoint._replace(disabled=taken.result.disabled)
        line.ended += 1
        self._tried.append(taken)

    def _now_s(self) -> float:
        """By Redis' clock."""
        return time.monotonic() + self._redis_ahead_s


async def _event_of(queue: Queue, ended: Ended) -> Event:
    """What endpoints are told. Raises StoreError."""
    kind, at_us = ended.notify.partition(" ")[0], ended.at_ms * 1000
    if kind != "response":
        return Event(f"{kind}.{ended.state}", ended.id, at_us)
    state = _OF_RESPONSES.get(ended.state, ended.state)
    if state == "completed":
        state = await _status_of_response(queue, ended.id)
    return Event(f"response.{state}", response_id(ended.id), at_us)


async def _status_of_response(queue: Queue, job_id: str) -> str:
    """`incomplete`, or `completed`, also if that can't be told any more."""
    [job] = await queue.get(job_id)
    try:
        body = await final_response(queue, job) if job else None
        raw = await body.read(_MOST_PARSED_BYTES) if body else None
        response = json.loads(raw) if raw else None
    except (StreamReset, ValueError):
        return "completed"
    is_cut = isinstance(response, Mapping) and response.get("status") == "incomplete"
    return "incomplete" if is_cut else "completed"


async def _end_by(tasks: Sequence[asyncio.Task[None]], ends_at: float) -> None:
    """Wait for tasks, and cancel them then."""
    if tasks:
        await asyncio.wait(tasks, timeout=max(0.0, ends_at - time.monotonic()))
    await end(tasks)


def _result(
    endpoint: WebhookEndpoint, delivery: Delivery, outcome: Outcome, now_s: float
) -> TryResult:
    """What follows from a try that has ended now."""
    done = Try(now_s, outcome.status, outcome.error, outcome.duration_ms)
    if outcome.delivered:
        return TryResult(done, DeliveryState.DELIVERED)
    disabled = endpoint.disabled
    if outcome.status == _GONE:
        disabled = "it has answered 410 (Gone)"
    delay_s = next_delay_s(
        delivery.n_tries + 1, now_s - delivery.begun_at, random.random(), outcome.retry_after_s
    )
    if disabled or delay_s is None:
        return TryResult(done, DeliveryState.FAILED, disabled=disabled)
    return TryResult(done, DeliveryState.PENDING, now_s + delay_s)
