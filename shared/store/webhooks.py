"""Webhook endpoints of tenants, and deliveries of events to them.

Deliveries lie in the first shard. Each endpoint has a record of each, and their order: those that
are pending by the time at which they are due, the others by minus the time at which they ended. The
score of a delivery says who may change it: a process has taken it for a try until then, and the
result is stored only if the score is still the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from pydantic import TypeAdapter

from shared.job.errors import BadRequest, NotFound, TooManyWebhooks
from shared.store import keys
from shared.store.documents import SHARD, Documents, Kind, LimitReached
from shared.store.ended import EndedStreams, Reader
from shared.store.queue import Queue
from shared.webhooks.webhook_delivery import Delivery, DeliveryState, Event, Try, TryResult
from shared.webhooks.webhook_endpoint import MOST_ENDPOINTS, WebhookEndpoint

_KIND = Kind("webhook", TypeAdapter(WebhookEndpoint), lambda endpoint: endpoint.tenant)
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
_TRIES_SHOWN = 12
OUTCOMES = ("delivered", "failed", "retried", "dropped")
"""What becomes of events, and of their tries."""


class WebhookRecords:
    """The webhook endpoints of all tenants. Methods raise StoreError."""

    def __init__(self, queue: Queue) -> None:
        self.documents = Documents(queue, _KIND)

    async def create(self, endpoint: WebhookEndpoint) -> None:
        """Store a new endpoint. Events that come behind this go to it. Raises TooManyWebhooks."""
        try:
            await self.documents.add(
                endpoint.id, endpoint, at=endpoint.created_at, most=MOST_ENDPOINTS
            )
        except LimitReached:
            raise TooManyWebhooks(
                f"You have {MOST_ENDPOINTS} webhook endpoints, as many as you may; delete one."
            ) from None

    async def disable(self, endpoint: WebhookEndpoint, why: str) -> None:
        """Send nothing to it any more, unless its URL has been changed."""
        await self.documents.change(
            endpoint.id,
            lambda now: now._replace(disabled=why) if now.url == endpoint.url else now,
        )

    async def delete(self, tenant: str, endpoint_id: str) -> bool:
        """Delete an endpoint with its deliveries; False if the tenant has no such endpoint."""
        deleted = await self.documents.delete(endpoint_id, lambda found: found.tenant == tenant)
        return deleted is not None

    async def get(self, tenant: str, endpoint_id: str) -> WebhookEndpoint | None:
        """None if the tenant has no such endpoint."""
        found = await self.documents.get(endpoint_id)
        return found if found and found.tenant == tenant else None

    async def list(self, tenant: str, after: str, limit: int) -> tuple[list[WebhookEndpoint], bool]:
        """At most `limit` of the tenant's behind `after`, newest first, and whether there are more.

        Raises NotFound if it has no endpoint `after`, and has deleted none lately.
        """
        page = await self.documents.page(after, limit, tenant=tenant)
        if page is None:
            raise NotFound(f"There is no webhook endpoint {after[:64]!r}.")
        return page

    async def check_ids(self, tenant: str, endpoint_ids: Sequence[str], param: str) -> None:
        """Raise BadRequest unless all of these are the tenant's; `param`: where they stand."""
        found = await self.documents.some(endpoint_ids)
        for each in endpoint_ids:
            if each not in found or found[each].tenant != tenant:
                raise BadRequest(f"There is no webhook endpoint {each[:64]!r}.", param)


# --- deliveries ---


class Address(NamedTuple):
    """The endpoint that deliveries go to."""

    endpoint: str
    tenant: str


class Backlog(NamedTuple):
    """What is left to do, and what was done."""

    ended: int
    """Entries of what has ended, of which no deliveries were made yet."""
    oldest_s: float
    """How long the oldest of them has been there; 0: there is none."""
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
    claim: str
    """Its score: no other process has it as long as this is so."""
    begin_by: float
    """By the monotonic clock: the result of a try that begins later may come behind the claim."""
    result: TryResult | None = None


class Deliveries:
    """The deliveries of all tenants. Methods raise StoreError."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._redis = queue.servers.of(SHARD)
        self._endpoints = WebhookRecords(queue)

    async def add(
        self, shard: int, after: str, upto: str, found: Iterable[tuple[WebhookEndpoint, Event]]
    ) -> int | None:
        """Store what is to be delivered of the entries of a shard behind `after`, up to `upto`.

        Returns how many were dropped, as too many are pending for their endpoint, or its tenant
        keeps most where Redis' memory is almost full; None if another process has stored what is to
        be delivered of these entries.
        """
        words: list[str] = []
        for endpoint, event in found:
            delivery = _new(event, endpoint.id)
            words += (_owner(endpoint), delivery.id, "", "", _record(delivery), "")
        reply = await self._put((Reader.WEBHOOKS.of(shard), after, upto), words)
        return None if reply is None else reply[1]

    async def due(self) -> tuple[float, list[Address]]:
        """The time by Redis' clock, and the endpoints with deliveries that are due, those that have
        waited longest first."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.time()
        pipeline.zrange(keys.first("due"), 0, _MOST_DUE - 1, withscores=True)
        now_s, found = await pipeline.execute()
        return now_s, [_address(each) for each, due_us in found if due_us <= now_s * 1e6]

    async def take(self, counts: Mapping[Address, int]) -> list[Taken]:
        """Take deliveries that are due, so many of each endpoint at most, for one try each.

        Those of endpoints that are gone are deleted.
        """
        of_tenants = await self._endpoints.documents.of_tenants({each.tenant for each in counts})
        there = (each for endpoints in of_tenants.values() for each in endpoints)
        found = {Address(each.id, each.tenant): each for each in there}
        endpoints = {each: found[each] for each in counts if each in found}
        for each in counts.keys() - endpoints.keys():
            gone = ("webhook", each.endpoint, each.tenant, "", "", 0)
            await self._queue.run("delete_document", SHARD, *gone)
        if not endpoints:
            return []
        words = [word for each in endpoints for word in (_packed(each), counts[each])]
        begin_by = time.monotonic() + CLAIM_S - _LONGEST_TRY_S
        arguments = (int(CLAIM_S * 1000), *words)
        claim, *groups = await self._queue.run("take_deliveries", SHARD, *arguments)
        taken = []
        for owner, *rest in groups:
            endpoint = endpoints[_address(owner)]
            for webhook_id, raw in zip(rest[::2], rest[1::2], strict=True):
                delivery = _parse(endpoint.id, webhook_id.decode(), raw)
                taken.append(Taken(endpoint, delivery, claim.decode(), begin_by))
        return taken

    async def end(self, tried: Iterable[Taken]) -> int:
        """Note the results of tries. Returns how many; not those of deliveries that another process
        has taken meanwhile."""
        words: list[str] = []
        for each in tried:
            assert each.result is not None
            done, next_at = each.result.done, each.result.next_at
            delivery = each.delivery._replace(
                state=each.result.state,
                n_tries=each.delivery.n_tries + 1,
                tries=(*each.delivery.tries, done)[-_TRIES_SHOWN:],
            )
            score = -done.at if next_at is None else next_at
            outcome = "retried" if delivery.state is DeliveryState.PENDING else delivery.state
            words += (
                _owner(each.endpoint), delivery.id, each.claim, str(int(score * 1e6)),
                _record(delivery), outcome,
            )  # fmt: skip
        reply = await self._put(("", "", ""), words) if words else None
        return reply[0] if reply else 0

    async def resend(self, address: Address, webhook_id: str) -> Delivery | None:
        """Deliver an event again, now, with all tries of a new one.

        None if the endpoint has no such delivery, or it has changed meanwhile.
        """
        order, records = _keys(address.endpoint)
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.time()
        pipeline.zscore(order, webhook_id)
        pipeline.hget(records, webhook_id)
        now_s, score, raw = await pipeline.execute()
        if score is None or raw is None:
            return None
        again = _parse(address.endpoint, webhook_id, raw)._replace(
            state=DeliveryState.PENDING, begun_at=now_s, n_tries=0
        )
        words = (_packed(address), webhook_id, str(int(score)), "", _record(again), "")
        reply = await self._put(("", "", ""), words)
        return again._replace(next_at=now_s) if reply and reply[0] else None

    async def list(
        self, endpoint_id: str, after: str, limit: int
    ) -> tuple[Sequence[Delivery], bool]:
        """At most `limit` deliveries behind `after`, and whether there are more: first those that
        have not ended, then the others, the latest first."""
        order, records = _keys(endpoint_id)
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.zcard(order)
        pipeline.zcount(order, "-inf", "(0")
        pipeline.zcount(order, "-inf", -int((time.time() - KEPT_S) * 1e6))
        pipeline.zrank(order, after)
        n_all, n_ended, n_shown, rank = await pipeline.execute()
        n_pending = n_all - n_ended
        # In the order the pending ones are behind the others.
        start = 0 if rank is None else (rank - n_ended) % n_all + 1
        stop = start + limit + 1
        pipeline = self._redis.pipeline(transaction=False)
        for first, last in (
            (n_ended + start, n_ended + min(stop, n_pending)),
            (max(0, start - n_pending), min(stop - n_pending, n_shown)),
        ):
            if first < last:
                pipeline.zrange(order, first, last - 1, withscores=True)
        found = [each for part in await pipeline.execute() for each in part]
        raw = await self._redis.hmget(records, [each for each, _ in found]) if found else ()
        return [
            _parse(endpoint_id, each.decode(), record, due_us)
            for (each, due_us), record in zip(found[:limit], raw, strict=False)
            if record is not None
        ], len(found) > limit

    async def backlog(self) -> Backlog:
        """For metrics and operators."""
        unread = await EndedStreams(self._queue, Reader.WEBHOOKS).unread()
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.zcard(keys.first("due"))
        pipeline.zrange(keys.first("due"), 0, 0, withscores=True)
        pipeline.hgetall(keys.first("webhook_counts"))
        pipeline.time()
        endpoints, due, counts, now_s = await pipeline.execute()
        return Backlog(
            *unread,
            endpoints,
            max((0.0, *(now_s - at / 1e6 for _, at in due))),
            {name.decode(): int(value) for name, value in counts.items()},
        )

    async def _put(
        self, position: tuple[str, str, str], words: Sequence[str]
    ) -> tuple[int, int] | None:
        # What has no room in the tenant's quota is delivered all the same.
        room = self._queue.rooms[SHARD]._replace(quota=inf)
        limits = (MOST_PENDING, MOST_KEPT, int(KEPT_S * 1000), *room)
        reply = await self._queue.run("put_deliveries", SHARD, *position, *limits, *words)
        return None if reply is None else (int(reply[0]), int(reply[1]))


def _packed(address: Address) -> str:
    """As scripts know the owner of deliveries."""
    return " ".join(address)


def _owner(endpoint: WebhookEndpoint) -> str:
    return _packed(Address(endpoint.id, endpoint.tenant))


def _address(owner: bytes) -> Address:
    return Address(*owner.decode().split(" ", 1))


def _keys(endpoint_id: str) -> tuple[str, str]:
    return keys.first("deliveries", endpoint_id), keys.first("delivery_records", endpoint_id)


def _new(event: Event, endpoint_id: str) -> Delivery:
    """One that has not been tried."""
    return Delivery(
        id=event.webhook_id(endpoint_id),
        endpoint=endpoint_id,
        event=event,
        state=DeliveryState.PENDING,
        begun_at=event.at_us / 1e6,
        n_tries=0,
        tries=(),
    )


def _record(delivery: Delivery) -> str:
    return json.dumps((*delivery.event, *delivery[3:7]), separators=(",", ":"))


def _parse(endpoint_id: str, webhook_id: str, raw: bytes, score: float = -1.0) -> Delivery:
    """`score`: in the order; below 0: it is not known, or the delivery has ended."""
    kind, subject, at_us, state, begun_at, n_tries, tries = json.loads(raw)
    return Delivery(
        id=webhook_id,
        endpoint=endpoint_id,
        event=Event(kind, subject, at_us),
        state=DeliveryState(state),
        begun_at=begun_at,
        n_tries=n_tries,
        tries=tuple(Try(*each) for each in tries),
        next_at=score / 1e6 if score >= 0 else None,
    )
