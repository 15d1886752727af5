"""Endpoints of tenants, and deliveries: each is tried by one process at a time, and kept."""

from __future__ import annotations

import pytest
from redis import Redis

from shared.job.errors import BadRequest, TooManyWebhooks
from shared.store.redis import delivery_records, keys
from shared.store.redis.delivery_records import DeliveryRecords
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.webhook_records import WebhookRecords
from shared.webhooks.webhook_delivery import Delivery, DeliveryState, Try
from shared.webhooks.webhook_endpoint import MOST_ENDPOINTS, WebhookEndpoint
from tests.redis.conftest import TENANT, open_queue
from tests.redis.webhooks.conftest import create, event, make_endpoint

FAILED, DELIVERED = Try(1.0, 500, "", 3), Try(2.0, 200, "", 4)


@pytest.fixture
def records(queue: JobQueue) -> WebhookRecords:
    return WebhookRecords(queue)


@pytest.fixture
def deliveries(queue: JobQueue) -> DeliveryRecords:
    return DeliveryRecords(queue)


async def take_one(
    deliveries: DeliveryRecords, endpoint: WebhookEndpoint
) -> tuple[WebhookEndpoint, Delivery]:
    (taken,) = await deliveries.take({endpoint.id: 4})
    return taken


async def test_an_endpoint_is_its_tenants(records: WebhookRecords) -> None:
    one = await create(records)
    two = await create(records, created_at=2.0, old_secret="s", old_until=5.0, disabled="why")
    await create(records, tenant="other")
    assert await records.list(TENANT) == [two, one]
    assert await records.get(TENANT, two.id) == two
    assert await records.get("other", two.id) is None
    assert not await records.delete("other", two.id)
    assert not await records.replace(two._replace(tenant="other"))
    assert await records.replace(one._replace(name="m"))
    assert (await records.get(TENANT, one.id)) == one._replace(name="m")
    assert await records.delete(TENANT, two.id)
    assert await records.list(TENANT) == [one._replace(name="m")]
    assert not await records.replace(two)


async def test_a_tenant_has_so_many(records: WebhookRecords) -> None:
    for _ in range(MOST_ENDPOINTS):
        await create(records)
    with pytest.raises(TooManyWebhooks):
        await create(records)
    await create(records, tenant="other")
    assert len(await records.list(TENANT)) == MOST_ENDPOINTS


async def test_ids_that_a_job_names(records: WebhookRecords) -> None:
    mine, other = await create(records), await create(records, tenant="other")
    await records.check_ids(TENANT, [mine.id], "webhooks")
    await records.check_ids(TENANT, [], "webhooks")
    for unknown in ([other.id], [mine.id, "we_0"], [""], ["x" * 10_000]):
        with pytest.raises(BadRequest) as found:
            await records.check_ids(TENANT, unknown, "webhooks")
        assert found.value.param == "webhooks"


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
    endpoint, told = await create(records), event()
    assert await deliveries.due() == []
    for _ in range(2):  # the second time is a repeated call
        assert await deliveries.add([(told, endpoint.id)]) == 0
    assert await deliveries.due() == [endpoint.id]
    monkeypatch.setattr(delivery_records, "CLAIM_S", 0.0)
    found, delivery = await take_one(deliveries, endpoint)
    assert found == endpoint
    assert (delivery.id, delivery.event) == (told.webhook_id(endpoint.id), told)
    monkeypatch.setattr(delivery_records, "CLAIM_S", 30.0)
    assert (await take_one(deliveries, endpoint))[1] == delivery  # its process was killed
    assert await deliveries.take({endpoint.id: 4}) == []
    assert await deliveries.due() == []


async def test_a_delivery_has_an_end(
    records: WebhookRecords, deliveries: DeliveryRecords, store: Redis
) -> None:
    endpoint, told = await create(records), event()
    await deliveries.add([(told, endpoint.id)])
    _, first = await take_one(deliveries, endpoint)
    assert await deliveries.end_try(first, FAILED, next_at=await deliveries.now_s())
    assert not await deliveries.end_try(first, DELIVERED, state=DeliveryState.DELIVERED)
    _, second = await take_one(deliveries, endpoint)
    assert (second.n_tries, second.tries) == (1, (FAILED,))
    assert await deliveries.end_try(second, DELIVERED, state=DeliveryState.DELIVERED)
    assert not await deliveries.end_try(second, FAILED, next_at=0)
    ((ended,), more) = await deliveries.list(endpoint.id, "", 10)
    assert not more
    assert (ended.state, ended.tries, ended.next_at) == ("delivered", (FAILED, DELIVERED), None)
    assert await deliveries.due() == []
    await deliveries.add([(told, endpoint.id)])  # a process was killed before it deleted the entry
    assert await deliveries.due() == []
    assert 0 < store.ttl(keys.first(keys.DELIVERY, ended.id)) <= 7 * 86_400
    assert (await deliveries.backlog()).counts == {"retried": 1, "delivered": 1}


async def test_a_delivery_is_sent_again_with_its_id(
    records: WebhookRecords, deliveries: DeliveryRecords, store: Redis
) -> None:
    endpoint, other = await create(records), await create(records)
    told = event()
    await deliveries.add([(told, endpoint.id)])
    _, delivery = await take_one(deliveries, endpoint)
    await deliveries.end_try(delivery, FAILED, state=DeliveryState.FAILED)
    assert await deliveries.resend(other.id, delivery.id) is None
    again = await deliveries.resend(endpoint.id, delivery.id)
    assert again is not None
    assert (again.id, again.state, again.n_tries, again.tries) == (
        delivery.id, DeliveryState.PENDING, 0, (FAILED,),
    )  # fmt: skip
    assert again.begun_at > delivery.begun_at
    assert store.ttl(keys.first(keys.DELIVERY, delivery.id)) == -1
    _, taken = await take_one(deliveries, endpoint)
    assert await deliveries.end_try(taken, DELIVERED, state=DeliveryState.DELIVERED)
    ((shown,), _) = await deliveries.list(endpoint.id, "", 10)
    assert shown.tries == (FAILED, DELIVERED)


async def test_a_failed_try_can_disable_the_endpoint(
    records: WebhookRecords, deliveries: DeliveryRecords
) -> None:
    endpoint = await create(records)
    await deliveries.add([(event(), endpoint.id)])
    _, delivery = await take_one(deliveries, endpoint)
    await deliveries.end_try(delivery, FAILED, state=DeliveryState.FAILED, disabled="410")
    found = await records.get(TENANT, endpoint.id)
    assert found is not None
    assert found.disabled == "410"


async def test_a_deleted_endpoint_leaves_nothing(
    records: WebhookRecords, deliveries: DeliveryRecords, store: Redis
) -> None:
    endpoint = await create(records)
    await deliveries.add([(event(), endpoint.id), (event(), endpoint.id)])
    ((_, one),) = await deliveries.take({endpoint.id: 1})
    ((_, two),) = await deliveries.take({endpoint.id: 1})
    await deliveries.end_try(one, DELIVERED, state=DeliveryState.DELIVERED)
    await records.delete(TENANT, endpoint.id)
    assert not await deliveries.end_try(two, DELIVERED, state=DeliveryState.DELIVERED)
    await deliveries.add([(event(), endpoint.id)])
    assert store.keys(f"{keys.base(0)}*") == [keys.first(keys.WEBHOOK_COUNTS).encode()]


async def test_logs_and_backlogs_are_bounded(
    records: WebhookRecords,
    deliveries: DeliveryRecords,
    store: Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery_records, "MOST_PENDING", 5)
    monkeypatch.setattr(delivery_records, "MOST_KEPT", 3)
    endpoint = await create(records)
    assert await deliveries.add([(event(), endpoint.id) for _ in range(8)]) == 3
    assert (await deliveries.backlog()).counts == {"dropped": 3}
    for _, delivery in await deliveries.take({endpoint.id: 8}):
        await deliveries.end_try(delivery, DELIVERED, state=DeliveryState.DELIVERED)
    found, more = await deliveries.list(endpoint.id, "", 2)
    assert more
    rest, more = await deliveries.list(endpoint.id, found[-1].id, 2)
    assert not more
    assert len({each.id for each in (*found, *rest)}) == 3
    assert len(store.keys(keys.first(keys.DELIVERY, "*"))) == 3


async def test_the_backlog_tells_how_old_it_is(
    records: WebhookRecords, deliveries: DeliveryRecords, store: Redis
) -> None:
    assert await deliveries.backlog() == (0, 0.0, 0, 0.0, {})
    endpoint = await create(records)
    await deliveries.add([(event(), endpoint.id)])
    store.zincrby(keys.first(keys.DUE), -100 * 1e6, endpoint.id)
    store.xadd(keys.base(0) + keys.OUTBOX, {"id": "job"}, id="1000-1")
    found = await deliveries.backlog()
    assert (found.events, found.endpoints) == (1, 1)
    assert found.oldest_s > 1e9
    assert 90 <= found.overdue_s < 200


def test_an_unsaved_endpoint_has_one_secret_or_two() -> None:
    endpoint = make_endpoint(secret="a", old_secret="b", old_until=5.0)
    assert endpoint.secrets(4.0) == ("a", "b")
    assert endpoint.secrets(5.0) == ("a",)
    assert make_endpoint(secret="a").secrets(0.0) == ("a",)
