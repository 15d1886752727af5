"""Deliveries of events to webhook endpoints in Redis, and the outbox that they are made of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.webhook_records import SHARD, parse_endpoint
from shared.webhooks.webhook_delivery import Delivery, DeliveryState, Ended, Event, Try
from shared.webhooks.webhook_endpoint import WebhookEndpoint

CLAIM_S = 30.0
"""A delivery whose try has no result by then is due again: its process has ended."""
MOST_PENDING = 20_000
"""Deliveries of one endpoint that have not ended; further events are dropped."""
KEPT_S = 7 * 86_400
MOST_KEPT = 1000
"""Of one endpoint, of those that have ended."""
_TRIES_SHOWN = 12
_MOST_DUE = 1000


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


class DeliveryRecords:
    """The deliveries of all tenants. Methods raise StoreError."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._redis = queue.servers.of(SHARD)

    async def now_s(self) -> float:
        """By Redis' clock."""
        seconds, micros = await self._redis.time()
        return int(seconds) + int(micros) / 1e6

    # --- the outbox ---

    async def ended(self, shard: int, limit: int) -> list[Ended]:
        """The oldest entries of a shard's outbox."""
        found = await self._queue.servers.of(shard).xrange(_outbox(shard), count=limit)
        return [_parse_ended(entry, fields) for entry, fields in found]

    async def forget(self, shard: int, ended: Sequence[Ended]) -> None:
        """Delete entries of a shard's outbox."""
        if ended:
            await self._queue.servers.of(shard).xdel(_outbox(shard), *(e.entry for e in ended))

    # --- deliveries ---

    async def add(self, events: Sequence[tuple[Event, str]]) -> int:
        """Have events delivered, each to an endpoint; those that are there stay as they are.

        Returns how many were dropped, as too many are pending for their endpoint.
        """
        words = [
            word
            for event, endpoint in events
            for word in (
                event.webhook_id(endpoint), endpoint, event.type, event.subject, event.at_us
            )
        ]  # fmt: skip
        if not words:
            return 0
        return int(await self._queue.run("add_deliveries", SHARD, (MOST_PENDING, *words)))

    async def due(self) -> list[str]:
        """The endpoints with deliveries that are due, those that have waited longest first."""
        found = await self._redis.zrange(
            keys.first(keys.DUE), 0, int(await self.now_s() * 1e6),
            byscore=True, offset=0, num=_MOST_DUE,
        )  # fmt: skip
        return [each.decode() for each in found]

    async def take(self, counts: Mapping[str, int]) -> list[tuple[WebhookEndpoint, Delivery]]:
        """Take deliveries that are due, so many of each endpoint at most, for one try each."""
        words = [word for pair in counts.items() for word in pair]
        taken = []
        arguments = (int(CLAIM_S * 1000), *words)
        for endpoint_id, raw, *rest in await self._queue.run("take_deliveries", SHARD, arguments):
            endpoint = parse_endpoint(endpoint_id.decode(), _pairs(raw))
            for webhook_id, record in zip(rest[::2], rest[1::2], strict=True):
                delivery = _parse(webhook_id.decode(), _pairs(record), None)
                if endpoint and delivery:
                    taken.append((endpoint, delivery))
        return taken

    async def end_try(
        self,
        delivery: Delivery,
        done: Try,
        *,
        next_at: float | None = None,
        state: DeliveryState = DeliveryState.PENDING,
        disabled: str = "",
    ) -> bool:
        """Note the result of a try; False if another process has noted one meanwhile.

        `next_at`: of a pending one, when it is tried again. `disabled`: why its endpoint is.
        """
        tries = json.dumps([*delivery.tries, done][-_TRIES_SHOWN:])
        arguments = (
            delivery.id, delivery.n_tries, tries, "" if next_at is None else int(next_at * 1e6),
            "" if state is DeliveryState.PENDING else state, disabled, KEPT_S * 1000, MOST_KEPT,
        )  # fmt: skip
        return bool(await self._queue.run("end_delivery", SHARD, arguments))

    async def resend(self, endpoint_id: str, webhook_id: str) -> Delivery | None:
        """Deliver an event again; None if the endpoint has no such delivery."""
        if not await self._queue.run("resend_delivery", SHARD, (webhook_id, endpoint_id)):
            return None
        found = await self._read(endpoint_id, [webhook_id])
        return found[0] if found else None

    async def list(
        self, endpoint_id: str, after: str, limit: int
    ) -> tuple[Sequence[Delivery], bool]:
        """At most `limit` deliveries behind `after`, and whether there are more: first those that
        have not ended, then the others, the latest first."""
        log, due = keys.first(keys.DELIVERIES, endpoint_id), keys.first(keys.DUE, endpoint_id)
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.zrange(due, 0, -1)
        pipeline.zrevrange(log, 0, -1)
        pending, ended = await pipeline.execute()
        ids = [each.decode() for each in dict.fromkeys([*pending, *ended])]
        start = ids.index(after) + 1 if after in ids else 0
        shown = ids[start : start + limit]
        return await self._read(endpoint_id, shown), len(ids) > start + limit

    async def backlog(self) -> Backlog:
        """For metrics and operators."""
        servers, shards = self._queue.servers, range(self._queue.shards)
        pipeline = servers.pipeline()
        for shard in shards:
            pipeline.of(shard).xlen(_outbox(shard))
            pipeline.of(shard).xrange(_outbox(shard), count=1)
        replies = await pipeline.execute()
        first = self._redis.pipeline(transaction=False)
        first.zcard(keys.first(keys.DUE))
        first.zrange(keys.first(keys.DUE), 0, 0, withscores=True)
        first.hgetall(keys.first(keys.WEBHOOK_COUNTS))
        first.time()
        endpoints, due, counts, (seconds, _) = await first.execute()
        oldest = [entry for found in replies[1::2] for entry, _ in found]
        return Backlog(
            sum(replies[::2]),
            max((0.0, *(seconds - int(entry.split(b"-")[0]) / 1000 for entry in oldest))),
            endpoints,
            max((0.0, *(seconds - at / 1e6 for _, at in due))),
            {name.decode(): int(value) for name, value in counts.items()},
        )

    async def _read(self, endpoint_id: str, webhook_ids: Sequence[str]) -> Sequence[Delivery]:
        pipeline = self._redis.pipeline(transaction=False)
        for each in webhook_ids:
            pipeline.hgetall(keys.first(keys.DELIVERY, each))
            # Behind its record, so that no try is shown with the time that came before it.
            pipeline.zscore(keys.first(keys.DUE, endpoint_id), each)
        replies = await pipeline.execute() if webhook_ids else ()
        due = (None if at is None else at / 1e6 for at in replies[1::2])
        found = map(_parse, webhook_ids, replies[::2], due)
        return [delivery for delivery in found if delivery]


def _outbox(shard: int) -> str:
    return keys.base(shard) + keys.OUTBOX


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _parse_ended(entry: bytes, fields: Mapping[bytes, bytes]) -> Ended:
    names = ("id", "state", "tenant", "notify")
    return Ended(entry.decode(), *(fields.get(each.encode(), b"").decode() for each in names))


def _parse(webhook_id: str, raw: Mapping[bytes, bytes], next_at: float | None) -> Delivery | None:
    """A delivery from its record; None if there is none."""
    if b"endpoint" not in raw or b"type" not in raw:
        return None
    text = {name.decode(): value.decode() for name, value in raw.items()}
    return Delivery(
        id=webhook_id,
        endpoint=text["endpoint"],
        event=Event(text["type"], text["subject"], int(text["at_us"])),
        state=DeliveryState(text.get("state", DeliveryState.PENDING)),
        begun_at=int(text["begun_us"]) / 1e6,
        n_tries=int(text["n_tries"]),
        tries=tuple(Try(*each) for each in json.loads(text.get("tries", "[]"))),
        next_at=next_at,
    )
