"""Endpoints of tenants, and deliveries: each is tried by one process at a time, and kept."""

from __future__ import annotations

import time

import pytest
from redis import Redis

from shared.store.redis import delivery_records, keys
from shared.store.redis.delivery_records import DeliveryRecords, Taken
from shared.store.redis.job_queue import JobQueue
from shared.store.webhooks import WebhookRecords
from shared.webhooks.webhook_delivery import DeliveryState, Try, TryResult
from shared.webhooks.webhook_endpoint import WebhookEndpoint
from tests.redis.conftest import TENANT, open_queue
from tests.redis.webhooks.conftest import create, ended, make_endpoint, told

FAILED, DELIVERED = Try(time.time(), 500, "", 3), Try(time.time() + 1, 200, "", 4)
HAS_FAILED = TryResult(FAILED, DeliveryState.FAILED)
IS_DELIVERED = TryResult(DELIVERED, DeliveryState.DELIVERED)


@pytest.fixture
def records(queue: JobQueue) -> WebhookRecords:
    return WebhookRecords(queue)


@pytest.fixture
def deliveries(queue: JobQueue) -> DeliveryRecords:
    return DeliveryRecords(queue)


async def take_one(deliveries: DeliveryRecords, endpoint: WebhookEndpoint) -> Taken:
    (taken,) = await deliveries.take({endpoint.id: 4})
    return taken


async def due(deliveries: DeliveryRecords) -> list[str]:
    return (await deliveries.due())[1]


async def test_every_shard_knows_who_has_endpoints(redis_url: str, store: Redis) -> None:
    async with open_queue(redis_url, shards=3) as queue:
        records = WebhookRecords(queue)
        one, two = await create(records), await create(records)

        def known() -> list[bool]:
            return [
                bool(store.sismember(keys.base(shard) + keys.WEBHOOK_TENANTS, TENANT))
                for shard in range(3)
            ]

        assert known() == [True] * 3
        await records.delete(TENANT, one.id)
        assert known() == [True] * 3
        await records.delete(TENANT, two.id)
        assert known() == [False] * 3


async def test_a_delivery_is_taken_once_until_its_claim_has_run_out(
    records: WebhookRecords, deliveries: DeliveryRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = await create(records)
    new = told(endpoint)
    assert await due(deliveries) == []
    for _ in range(2):  # the second time is a repeated call
        assert await deliveries.add([new]) == 0
    assert await due(deliveries) == [endpoint.id]
    monkeypatch.setattr(delivery_records, "CLAIM_S", 0.0)
    first = await take_one(deliveries, endpoint)
    assert first.endpoint == endpoint
    assert first.delivery == new.delivery
    monkeypatch.setattr(delivery_records, "CLAIM_S", 30.0)
    second = await take_one(deliveries, endpoint)  # the process of the first was killed
    assert second.delivery == first.delivery
    assert await deliveries.take({endpoint.id: 4}) == []
    assert await due(deliveries) == []
    assert await deliveries.end_tries([ended(first, HAS_FAILED)]) == 0  # or it had only stopped
    assert await deliveries.end_tries([ended(second, IS_DELIVERED)]) == 1


async def test_a_delivery_has_an_end(
    records: WebhookRecords, deliveries: DeliveryRecords, store: Redis
) -> None:
    endpoint = await create(records)
    new = told(endpoint)
    await deliveries.add([new])
    first = await take_one(deliveries, endpoint)
    now_s, _ = await deliveries.due()
    retried = TryResult(FAILED, DeliveryState.PENDING, next_at=now_s)
    assert await deliveries.end_tries([ended(first, retried)]) == 1
    assert await deliveries.end_tries([ended(first, IS_DELIVERED)]) == 0
    ((shown,), _) = await deliveries.list(endpoint.id, "", 10)
    assert shown.next_at == pytest.approx(now_s)
    second = await take_one(deliveries, endpoint)
    assert (second.delivery.n_tries, second.delivery.tries) == (1, (FAILED,))
    assert await deliveries.end_tries([ended(second, IS_DELIVERED)]) == 1
    assert await deliveries.end_tries([ended(second, retried)]) == 0
    ((shown,), more) = await deliveries.list(endpoint.id, "", 10)
    assert not more
    assert shown == second.delivery._replace(
        state=DeliveryState.DELIVERED, n_tries=2, tries=(FAILED, DELIVERED)
    )
    assert await due(deliveries) == []
    assert 0 < store.ttl(keys.first(keys.DELIVERY_LOG, endpoint.id)) <= 7 * 86_400
    assert not store.exists(keys.first(keys.TRIES, endpoint.id))
    assert (await deliveries.backlog()).counts == {"retried": 1, "delivered": 1}


async def test_a_deleted_endpoint_leaves_nothing(
    records: WebhookRecords, deliveries: DeliveryRecords, store: Redis
) -> None:
    endpoint, other = await create(records), await create(records)
    await deliveries.add(map(told, (endpoint, endpoint, other)))
    (one,) = await deliveries.take({endpoint.id: 1})
    (two,) = await deliveries.take({endpoint.id: 1})
    (three,) = await deliveries.take({other.id: 1})
    await deliveries.end_tries([ended(one, IS_DELIVERED)])
    await records.delete(TENANT, endpoint.id)
    gone = HAS_FAILED._replace(disabled="410")
    assert await deliveries.end_tries([ended(two, gone), ended(three, IS_DELIVERED)]) == 1
    await records.delete(TENANT, other.id)
    await deliveries.add([told(endpoint)])
    places = {keys.first(keys.GONE, f"webhook:{each.id}") for each in (endpoint, other)}
    left = {each.decode() for each in store.keys(f"{keys.base(0)}*")}
    assert left == {keys.first(keys.WEBHOOK_COUNTS), *places}


async def test_logs_and_backlogs_are_bounded(
    records: WebhookRecords,
    deliveries: DeliveryRecords,
    store: Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery_records, "MOST_PENDING", 5)
    monkeypatch.setattr(delivery_records, "MOST_KEPT", 3)
    endpoint = await create(records)
    events = [told(endpoint) for _ in range(8)]
    assert await deliveries.add(events) == 3
    assert await deliveries.add(events[:6]) == 1
    assert (await deliveries.backlog()).counts == {"dropped": 4}
    taken = await deliveries.take({endpoint.id: 8})
    assert await deliveries.end_tries(ended(each, IS_DELIVERED) for each in taken) == 5
    assert store.llen(keys.first(keys.DELIVERY_LOG, endpoint.id)) == 3
    found, more = await deliveries.list(endpoint.id, "", 2)
    assert more
    rest, more = await deliveries.list(endpoint.id, found[-1].id, 2)
    assert not more
    assert [each.id for each in (*found, *rest)] == [each.delivery.id for each in taken[:1:-1]]


@pytest.mark.parametrize("kept_s", [50.0, 150.0])
async def test_what_ended_long_ago_is_neither_shown_nor_kept(
    records: WebhookRecords,
    deliveries: DeliveryRecords,
    store: Redis,
    monkeypatch: pytest.MonkeyPatch,
    kept_s: float,
) -> None:
    endpoint = await create(records)
    await deliveries.add([told(endpoint) for _ in range(3)])
    one, two, three = await deliveries.take({endpoint.id: 3})
    now = IS_DELIVERED._replace(done=DELIVERED._replace(at=time.time()))
    earlier = IS_DELIVERED._replace(done=DELIVERED._replace(at=time.time() - 100))
    await deliveries.end_tries([ended(one, earlier), ended(two, earlier)])
    monkeypatch.setattr(delivery_records, "KEPT_S", kept_s)
    (_, *found), _ = await deliveries.list(endpoint.id, "", 10)
    assert len(found) == (0 if kept_s < 100 else 2)
    await deliveries.end_tries([ended(three, now)])
    assert store.llen(keys.first(keys.DELIVERY_LOG, endpoint.id)) == (1 if kept_s < 100 else 3)


async def test_events_of_the_outbox_with_a_result_are_stored_with_it(
    records: WebhookRecords,
    deliveries: DeliveryRecords,
    store: Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is delivered at once is only in the log."""
    endpoint, gone = await create(records), make_endpoint()
    retried = TryResult(FAILED, DeliveryState.PENDING, next_at=1.0)
    fresh = [told(endpoint) for _ in range(4)]
    results = (IS_DELIVERED, HAS_FAILED, retried, retried)
    monkeypatch.setattr(delivery_records, "MOST_PENDING", 1)
    done = [ended(each, result) for each, result in zip(fresh, results, strict=True)]
    assert await deliveries.end_tries([*done, ended(told(gone), IS_DELIVERED)]) == 4
    found, _ = await deliveries.list(endpoint.id, "", 10)
    assert [(each.id, each.state, each.tries) for each in found] == [
        (fresh[2].delivery.id, "pending", (FAILED,)),
        (fresh[1].delivery.id, "failed", (FAILED,)),
        (fresh[0].delivery.id, "delivered", (DELIVERED,)),
    ]
    assert (await deliveries.backlog()).counts == {
        "delivered": 1, "failed": 1, "retried": 1, "dropped": 1,
    }  # fmt: skip
    assert await due(deliveries) == [endpoint.id]
    assert not store.exists(keys.first(keys.DELIVERY_LOG, gone.id))


async def test_an_event_of_the_outbox_is_stored_with_its_claim(
    records: WebhookRecords, deliveries: DeliveryRecords
) -> None:
    endpoint = await create(records)
    now_s, _ = await deliveries.due()
    fresh = told(endpoint, claim=str(int((now_s + 30) * 1e6)))
    await deliveries.add([fresh])
    assert await due(deliveries) == []
    assert await deliveries.end_tries([ended(fresh, IS_DELIVERED)]) == 1
    ((shown,), _) = await deliveries.list(endpoint.id, "", 10)
    assert shown.state == "delivered"
    assert (await deliveries.backlog()).endpoints == 0
