"""Delivers events to webhook endpoints: the task `webhooks` of maintenance."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter, deque
from collections.abc import Sequence
from functools import partial

from gateway.webhooks.ended_events import deliveries_of
from gateway.webhooks.webhook_sender import Outcome, WebhookSender
from shared.platform.logs import RareWarning
from shared.platform.tasks import end, run_together
from shared.store.interface import StoreError
from shared.store.queue import Queue
from shared.store.redis.delivery_records import CLAIM_S, MOST_PENDING, DeliveryRecords, Taken
from shared.store.redis.outbox import Outbox
from shared.webhooks.retry_schedule import next_delay_s
from shared.webhooks.webhook_delivery import Delivery, DeliveryState, Ended, Try, TryResult
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
_LEAST_READ, _MOST_READ = 50, 500
"""Entries of a shard's outbox in one round; in between, twice what the last one has delivered."""
_MOST_AHEAD = 64
"""Due deliveries of one endpoint that are taken before there is room for their tries."""
_MOST_KNOWN = 10_000
_GRACE_S = 3.0
_GONE = 410


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

    Redis is called in rounds, once for all results. An event is delivered straight from the outbox;
    only what has no result in the next round, or has to be tried again, is stored as a delivery. A
    process that is killed leaves what it has read of the outbox to the next.
    """

    def __init__(self, queue: Queue, sender: WebhookSender) -> None:
        self._queue = queue
        self._sender = sender
        self._records = DeliveryRecords(queue)
        self._outbox = Outbox(queue)
        self._limit = _LEAST_READ
        self._batches: dict[int, Sequence[Ended]] = {}  # of the outboxes, read in the last round
        self._fresh: list[Taken] = []  # what is to be delivered of them
        self._n_open = 0  # without a result, if there may be more in the outboxes
        self._ended: list[Taken] = []
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
            for shard, ended in self._batches.items():
                await self._outbox.read(shard, 0, ended)
        self._sender.close()

    def _tries(self) -> Sequence[asyncio.Task[None]]:
        return [task for line in self._lines.values() for task in line.tries]

    async def _run(self) -> None:
        while time.monotonic() < self._until:
            self._next_round.clear()
            try:
                now_s, due = await self._records.due()
                self._redis_ahead_s = now_s - time.monotonic()
                await self._settle()
                await self._read_outboxes()
                await self._take(due)
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
        """Store all results, and the deliveries of the outbox that have none."""
        ended, self._ended = self._ended, []
        unsettled = [each for each in self._fresh if each.result is None]
        begun = [each for each in unsettled if each.has_begun]
        for line in self._lines.values():
            line.waiting = deque(each for each in line.waiting if each.claim)
        claim = str(int((self._now_s() + CLAIM_S) * 1e6))
        for each in begun:
            each.claim = claim
        try:
            await self._records.end_tries(ended)
            ended = []
            if dropped := await self._records.add(unsettled):
                log.warning("dropped %d events: %d wait for their endpoint", dropped, MOST_PENDING)
        except StoreError:  # all is stored in the next round
            self._ended[:0] = ended
            for each in begun:
                each.claim = ""
            raise
        self._n_open = 0
        self._limit = min(max(_LEAST_READ, 2 * (len(self._fresh) - len(unsettled))), _MOST_READ)
        self._fresh.clear()

    async def _read_outboxes(self) -> None:
        full = await run_together(*map(self._read, range(self._queue.shards)))
        if any(full):  # the next round begins when all have results
            self._n_open = sum(each.result is None for each in self._fresh)
            if not self._n_open:
                self._next_round.set()

    async def _read(self, shard: int) -> bool:
        """Begin to deliver what has ended; whether there may be more."""
        try:
            ended = await self._outbox.read(shard, self._limit, self._batches.get(shard, ()))
            self._batches[shard] = ()  # if the next line fails, `ended` is read again
            found = await deliveries_of(self._queue, ended)
            self._batches[shard] = ended
        except StoreError as error:  # the other shards go on
            self._warn(f"events of shard {shard} wait: {error}")
            return False
        self._fresh += found
        self._begin(found)
        return len(ended) == self._limit

    async def _take(self, due: Sequence[str]) -> None:
        counts: dict[str, int] = {}
        left, of_tenants = _MOST - self._n_tries, Counter[str]()
        for each in due:
            line = self._lines.get(each)
            tenant = line.endpoint.tenant if line else ""
            n = min(self._room(line) - of_tenants[tenant] if line else 1, left)
            if n > 0:
                left -= n
                of_tenants[tenant] += n
                counts[each] = n + (min(line.ended, _MOST_AHEAD) if line else 0)
        taken = await self._records.take(counts) if counts else []
        found = Counter(each.endpoint.id for each in taken)
        self._begin(taken)
        for each in counts.keys() & self._lines.keys():
            line = self._lines[each]
            line.ended, line.has_more = 0, found[each] == counts[each]

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
        if line.has_more:
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
        endpoint, delivery, taken.has_begun = line.endpoint, taken.delivery, True
        if endpoint.disabled:
            outcome = Outcome(0, f"not sent: {endpoint.disabled}", 0)
        else:
            body, at_s = delivery.event.body(), time.time()
            headers = signed_headers(delivery.id, at_s, body, endpoint.secrets(at_s))
            outcome = await self._sender.post(endpoint.url, headers, body)
        taken.result = _result(endpoint, delivery, outcome, self._now_s())
        if taken.result.disabled and not endpoint.disabled:
            log.warning("webhook endpoint %s is disabled: %s", endpoint.id, taken.result.disabled)
            line.endpoint = endpoint._replace(disabled=taken.result.disabled)
        line.ended += 1
        self._ended.append(taken)
        if not taken.claim:
            self._n_open -= 1
            if self._n_open == 0:
                self._next_round.set()

    def _now_s(self) -> float:
        """By Redis' clock."""
        return time.monotonic() + self._redis_ahead_s


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
