"""Deliveries to webhook endpoints: each is tried by one process at a time, and has an end."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from redis import Redis

from shared.store import deliveries as module
from shared.store import keys
from shared.store.deliveries import Address, Deliveries, Taken
from shared.store.ended import EndedStreams, Reader
from shared.store.queue import Queue
from shared.store.webhooks import WebhookRecords
from shared.webhooks.webhook_delivery import Delivery, DeliveryState, Try, TryResult
from shared.webhooks.webhook_endpoint import WebhookEndpoint
from tests.store.conftest import TENANT
from tests.store.webhooks import address, create, new_event, tell

FAILED, DELIVERED = Try(time.time(), 500, "", 3), Try(time.time() + 1, 200, "", 4)
HAS_FAILED = TryResult(FAILED, DeliveryState.FAILED)
IS_DELIVERED = TryResult(DELIVERED, DeliveryState.DELIVERED)


@pytest.fixture
def records(queue: Queue) -> WebhookRecords:
    return WebhookRecords(queue)


@pytest.fixture
def deliveries(queue: Queue) -> Deliveries:
    return Deliveries(queue)


async def take(deliveries: Deliveries, endpoint: WebhookEndpoint, most: int = 4) -> list[Taken]:
    return await deliveries.take({address(endpoint): most})


async def due(deliveries: Deliveries) -> list[Address]:
    return (await deliveries.due())[1]


async def end(deliveries: Deliveries, *tried: tuple[Taken, TryResult]) -> int:
    return await deliveries.end(replace(taken, result=result) for taken, result in tried)


async def only(deliveries: Deliveries, endpoint: WebhookEndpoint) -> Delivery:
    ((shown,), more) = await deliveries.list(endpoint.id, "", 10)
    assert not more
    return shown


async def test_entries_become_deliveries_once(
    queue: Queue, records: WebhookRecords, deliveries: Deliveries
) -> None:
    endpoint, event = await create(records), new_event()
    assert await deliveries.add(0, "", "1-0", [(endpoint, event)]) == 0
    assert await deliveries.add(0, "", "1-0", [(endpoint, event)]) is None  # a repeated call
    assert await deliveries.add(0, "", "2-0", [(endpoint, new_event())]) is None  # a slower process
    assert await EndedStreams(queue, Reader.WEBHOOKS).positions() == {0: "1-0"}
    shown = await only(deliveries, endpoint)
    assert (shown.id, shown.event, shown.state) == (event.webhook_id(endpoint.id), event, "pending")


async def test_a_delivery_is_taken_once_until_its_claim_has_run_out(
    queue: Queue,
    records: WebhookRecords,
    deliveries: Deliveries,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint = await create(records)
    assert await due(deliveries) == []
    await tell(queue, endpoint)
    assert await due(deliveries) == [address(endpoint)]
    monkeypatch.setattr(module, "CLAIM_S", 0.0)
    (first,) = await take(deliveries, endpoint)
    assert first.endpoint == endpoint
    monkeypatch.setattr(module, "CLAIM_S", 30.0)
    (second,) = await take(deliveries, endpoint)  # the process of the first was killed
    assert second.delivery == first.delivery
    assert await take(deliveries, endpoint) == []
    assert await due(deliveries) == []
    assert await end(deliveries, (first, HAS_FAILED)) == 0  # or it had only stopped
    assert await end(deliveries, (second, IS_DELIVERED)) == 1


async def test_a_delivery_has_an_end(
    queue: Queue, records: WebhookRecords, deliveries: Deliveries, server: Redis
) -> None:
    endpoint = await create(records)
    await tell(queue, endpoint)
    (first,) = await take(deliveries, endpoint)
    now_s, _ = await deliveries.due()
    retried = TryResult(FAILED, DeliveryState.PENDING, next_at=now_s)
    assert await end(deliveries, (first, retried)) == 1
    assert await end(deliveries, (first, IS_DELIVERED)) == 0
    assert (await only(deliveries, endpoint)).next_at == pytest.approx(now_s)
    (second,) = await take(deliveries, endpoint)
    assert (second.delivery.n_tries, second.delivery.tries) == (1, (FAILED,))
    assert await end(deliveries, (second, IS_DELIVERED)) == 1
    assert await end(deliveries, (second, retried)) == 0
    assert await only(deliveries, endpoint) == second.delivery._replace(
        state=DeliveryState.DELIVERED, n_tries=2, tries=(FAILED, DELIVERED)
    )
    assert await due(deliveries) == []
    for word in (keys.DELIVERIES, keys.DELIVERY_RECORDS):
        assert 0 < server.ttl(keys.first(word, endpoint.id)) <= 7 * 86_400
    assert (await deliveries.backlog()).counts == {"retried": 1, "delivered": 1}


async def test_what_has_ended_or_not_is_sent_again(
    queue: Queue, records: WebhookRecords, deliveries: Deliveries, server: Redis
) -> None:
    endpoint = await create(records)
    await tell(queue, endpoint)
    (first,) = await take(deliveries, endpoint)
    webhook_id = first.delivery.id
    assert await deliveries.resend(address(endpoint), "wh_x") is None
    again = await deliveries.resend(address(endpoint), webhook_id)
    assert again is not None
    assert again.next_at == pytest.approx((await deliveries.due())[0], abs=2)
    assert await end(deliveries, (first, IS_DELIVERED)) == 0  # it is tried anew
    (second,) = await take(deliveries, endpoint)
    assert await end(deliveries, (second, HAS_FAILED)) == 1
    again = await deliveries.resend(address(endpoint), webhook_id)
    assert again is not None
    assert (again.state, again.n_tries, again.tries) == ("pending", 0, (FAILED,))
    assert server.ttl(keys.first(keys.DELIVERIES, endpoint.id)) == -1
    (third,) = await take(deliveries, endpoint)
    assert third.delivery == again._replace(next_at=None)
    assert await end(deliveries, (third, IS_DELIVERED)) == 1
    assert (await only(deliveries, endpoint)).state == "delivered"


async def test_a_deleted_endpoint_leaves_nothing(
    queue: Queue, records: WebhookRecords, deliveries: Deliveries, server: Redis
) -> None:
    endpoint, other = await create(records), await create(records)
    await tell(queue, endpoint, other, events=[new_event(), new_event()])
    one, two = await take(deliveries, endpoint)
    await end(deliveries, (one, IS_DELIVERED))
    await records.delete(TENANT, endpoint.id)
    assert await end(deliveries, (two, HAS_FAILED)) == 0
    await tell(queue, endpoint)  # by a process that has read the endpoint before
    await records.delete(TENANT, other.id)
    assert await deliveries.take({address(each): 4 for each in (endpoint, other)}) == []
    assert await due(deliveries) == []
    for each in (endpoint, other):
        assert not server.exists(*(keys.first(word, each.id) for word in (
            keys.DELIVERIES, keys.DELIVERY_RECORDS
        )))  # fmt: skip


async def test_deliveries_are_bounded_and_listed_in_pages(
    queue: Queue,
    records: WebhookRecords,
    deliveries: Deliveries,
    server: Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_PENDING", 5)
    monkeypatch.setattr(module, "MOST_KEPT", 3)
    endpoint = await create(records)
    assert await tell(queue, endpoint, events=[new_event() for _ in range(8)]) == 3
    assert (await deliveries.backlog()).counts == {"dropped": 3}
    taken = await take(deliveries, endpoint, 8)
    results = [
        (each, IS_DELIVERED._replace(done=DELIVERED._replace(at=time.time() + n)))
        for n, each in enumerate(taken)
    ]
    assert await end(deliveries, *results) == 5
    assert server.hlen(keys.first(keys.DELIVERY_RECORDS, endpoint.id)) == 3
    waiting = [new_event() for _ in range(2)]
    await tell(queue, endpoint, events=waiting)
    order = sorted(each.webhook_id(endpoint.id) for each in waiting)  # due at the same time
    order += [each.delivery.id for each in taken[:1:-1]]
    for limit in (1, 2, 3, 5, 9):
        pages: list[str] = []
        more = True
        while more:
            after = pages[-1] if pages else ""
            found, more = await deliveries.list(endpoint.id, after, limit)
            assert len(found) == min(limit, 5 - len(pages))
            pages += [each.id for each in found]
        assert pages == order


@pytest.mark.parametrize("kept_s", [50.0, 150.0])
async def test_what_ended_long_ago_is_neither_shown_nor_kept(
    queue: Queue,
    records: WebhookRecords,
    deliveries: Deliveries,
    server: Redis,
    monkeypatch: pytest.MonkeyPatch,
    kept_s: float,
) -> None:
    endpoint = await create(records)
    await tell(queue, endpoint, events=[new_event() for _ in range(3)])
    one, two, three = await take(deliveries, endpoint)
    now = IS_DELIVERED._replace(done=DELIVERED._replace(at=time.time()))
    earlier = IS_DELIVERED._replace(done=DELIVERED._replace(at=time.time() - 100))
    await end(deliveries, (one, earlier), (two, earlier))
    monkeypatch.setattr(module, "KEPT_S", kept_s)
    (_, *found), _ = await deliveries.list(endpoint.id, "", 10)
    assert len(found) == (0 if kept_s < 100 else 2)
    await end(deliveries, (three, now))
    left = server.hlen(keys.first(keys.DELIVERY_RECORDS, endpoint.id))
    assert left == server.zcard(keys.first(keys.DELIVERIES, endpoint.id))
    assert left == (1 if kept_s < 100 else 3)
