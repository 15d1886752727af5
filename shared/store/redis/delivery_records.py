"""Deliveries of events to webhook endpoints in Redis."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from shared.store.documents import SHARD
from shared.store.redis import keys
from shared.store.redis.delivery_format import (
    ended_delivery,
    outcome,
    packed,
    packed_tries,
    pending_delivery,
)
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.outbox import outbox_key, parse_ended
from shared.store.webhooks import ENDPOINT, WebhookRecords
from shared.webhooks.webhook_delivery import Delivery, DeliveryState, TryResult
from shared.webhooks.webhook_endpoint import WebhookEndpoint

CLAIM_S = 30.0
"""A delivery whose try has no result by then is due again: its process has ended."""
_LONGEST_TRY_S = 17.0
"""A call takes 15 s at most (webhook_sender.py), then its result waits for the next round."""
MOST_PENDING = 20_000
"""Deliveries of one endpoint that have not ended; further events are dropped."""
KEPT_S = 7 * 86_400
MOST_KEPT = 1000
"""Of one endpoint, of those that have ended."""
_MOST_DUE = 1000
_READ_AT_ONCE = 1000
OUTCOMES = ("delivered", "failed", "retried", "dropped")
"""What becomes of events, and of their tries."""


class Backlog(NamedTuple):
    """What is left to do, and what was done."""

    events: int
    """Entries of the outbox."""
    oldest_s: float
    """How long the oldest entry has been in the outbox; 0: it is empty."""
    endpoints: int
    """Those with deliveries that have not ended."""
    overdue_s: float
    """How long the first delivery that is due has been so; 0: none is."""
    counts: Mapping[str, int]
    """How many there were, by OUTCOMES."""


@dataclass(slots=True, eq=False)
class Taken:
    """A delivery that a process has taken for one try."""

    endpoint: WebhookEndpoint
    delivery: Delivery
    claim: str = ""
    """No other process has it as long as this is its claim; empty: it is in the outbox only."""
    begin_by: float = inf
    """By the monotonic clock: the result of a try that begins later may come behind the claim."""
    has_begun: bool = False
    result: TryResult | None = None


class _Found(NamedTuple):
    """A delivery in Redis, not parsed yet."""

    id: str
    raw: str
    due_us: float | None
    """None: it has ended."""


class DeliveryRecords:
    """The deliveries of all tenants. Methods raise StoreError."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._redis = queue.servers.of(SHARD)

    async def add(self, found: Iterable[Taken]) -> int:
        """Store deliveries of the outbox that have no result: with their claims, or due now.

        Those that are pending stay as they are. Returns how many were dropped, as too many are
        pending for their endpoint.
        """
        groups: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for each in found:
            groups[each.endpoint.id, each.claim].append(packed(each.delivery))
        words: list[str | int] = []
        for (endpoint_id, claim), deliveries in groups.items():
            words += (endpoint_id, claim, len(deliveries), *deliveries)
        if not words:
            return 0
        return int(await self._queue.run("add_deliveries", SHARD, (MOST_PENDING, *words)))

    async def due(self) -> tuple[float, list[str]]:
        """The time by Redis' clock, and the endpoints with deliveries that are due, those that have
        waited longest first."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.time()
        pipeline.zrange(keys.first(keys.DUE), 0, _MOST_DUE - 1, withscores=True)
        (seconds, micros), found = await pipeline.execute()
        now_us = int(seconds) * 1_000_000 + int(micros)
        return now_us / 1e6, [each.decode() for each, due_us in found if due_us <= now_us]

    async def take(self, counts: Mapping[str, int]) -> list[Taken]:
        """Take deliveries that are due, so many of each endpoint at most, for one try each."""
        words = [word for pair in counts.items() for word in pair]
        arguments = (int(CLAIM_S * 1000), *words)
        begin_by = time.monotonic() + CLAIM_S - _LONGEST_TRY_S
        claim, *groups = await self._queue.run("take_deliveries", SHARD, arguments)
        taken = []
        for _endpoint_id, raw, *rest in groups:
            endpoint = ENDPOINT.validate_json(raw)
            for delivery, tries in zip(rest[::2], rest[1::2], strict=True):
                parsed = pending_delivery(endpoint.id, delivery.decode(), tries, None)
                taken.append(Taken(endpoint, parsed, claim.decode(), begin_by))
        return taken

    async def end_tries(self, ended: Iterable[Taken]) -> int:
        """Note the results of tries. Returns how many; not those of deliveries that another process
        has taken meanwhile."""
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for each in ended:
            assert each.result is not None
            endpoint_id = each.endpoint.id
            if each.result.disabled and not each.endpoint.disabled:
                await WebhookRecords(self._queue).disable(each.endpoint, each.result.disabled)
            groups[endpoint_id] += (
                packed(each.delivery), each.claim, *outcome(each.delivery, each.result)
            )  # fmt: skip
        words: list[str | int] = []
        for endpoint_id, found in groups.items():
            words += (endpoint_id, len(found) // 4, *found)
        if not words:
            return 0
        arguments = (int(KEPT_S * 1000), MOST_KEPT, MOST_PENDING, *words)
        return int(await self._queue.run("end_tries", SHARD, arguments))

    async def resend(self, endpoint_id: str, webhook_id: str) -> Delivery | None:
        """Deliver an event again; None if the endpoint has no such delivery."""
        async for found in self._all(endpoint_id):
            if found.id != webhook_id:
                continue
            now_s, _ = await self.due()
            (delivery,) = await self._parsed(endpoint_id, [found])
            again = delivery._replace(state=DeliveryState.PENDING, begun_at=now_s, n_tries=0)
            arguments = (
                endpoint_id, packed(delivery), packed_tries(again, again.tries),
                found.raw if found.due_us is None else "",
            )  # fmt: skip
            done = await self._queue.run("resend_delivery", SHARD, arguments)
            return again._replace(next_at=now_s) if done else None
        return None

    async def list(
        self, endpoint_id: str, after: str, limit: int
    ) -> tuple[Sequence[Delivery], bool]:
        """At most `limit` deliveries behind `after`, and whether there are more: first those that
        have not ended, then the others, the latest first."""
        page: list[_Found] = []
        seen: set[str] = set()
        async for found in self._all(endpoint_id):
            if found.id in seen:  # it has ended meanwhile
                continue
            seen.add(found.id)
            page.append(found)
            if found.id == after:
                page.clear()
            elif len(page) > limit and (not after or after in seen):
                break
        return await self._parsed(endpoint_id, page[:limit]), len(page) > limit

    async def _all(self, endpoint_id: str) -> AsyncIterator[_Found]:
        """All of an endpoint; one that ends meanwhile comes twice."""
        for start in itertools.count(0, _READ_AT_ONCE):
            pending = await self._redis.zrange(
                keys.first(keys.PENDING, endpoint_id), start, start + _READ_AT_ONCE - 1,
                withscores=True,
            )  # fmt: skip
            for raw, due_us in pending:
                yield _Found(raw.decode().partition(" ")[0], raw.decode(), due_us)
            if len(pending) < _READ_AT_ONCE:
                break
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.time()
        pipeline.lrange(keys.first(keys.DELIVERY_LOG, endpoint_id), 0, -1)
        (seconds, _), ended = await pipeline.execute()
        for raw in ended:
            webhook_id, ended_us, _ = raw.decode().split(" ", 2)
            if int(ended_us) >= (seconds - KEPT_S) * 1e6:
                yield _Found(webhook_id, raw.decode(), None)

    async def _parsed(self, endpoint_id: str, found: Sequence[_Found]) -> Sequence[Delivery]:
        if not found:
            return ()
        tries = await self._redis.hmget(
            keys.first(keys.TRIES, endpoint_id), [each.id for each in found]
        )
        return [
            ended_delivery(endpoint_id, each.raw)
            if each.due_us is None
            else pending_delivery(endpoint_id, each.raw, raw, each.due_us / 1e6)
            for each, raw in zip(found, tries, strict=True)
        ]

    async def backlog(self) -> Backlog:
        """For metrics and operators."""
        servers, shards = self._queue.servers, range(self._queue.shards)
        pipeline = servers.pipeline()
        for shard in shards:
            pipeline.of(shard).llen(outbox_key(shard))
            pipeline.of(shard).lindex(outbox_key(shard), 0)
        replies = await pipeline.execute()
        first = self._redis.pipeline(transaction=False)
        first.zcard(keys.first(keys.DUE))
        first.zrange(keys.first(keys.DUE), 0, 0, withscores=True)
        first.hgetall(keys.first(keys.WEBHOOK_COUNTS))
        first.time()
        endpoints, due, counts, (seconds, _) = await first.execute()
        oldest = [parse_ended(raw).at_us for raw in replies[1::2] if raw]
        return Backlog(
            sum(replies[::2]),
            max((0.0, *(seconds - at_us / 1e6 for at_us in oldest))),
            endpoints,
            max((0.0, *(seconds - at / 1e6 for _, at in due))),
            {name.decode(): int(value) for name, value in counts.items()},
        )
