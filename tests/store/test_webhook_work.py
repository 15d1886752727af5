"""Deliveries to receivers of all kinds, with the real Redis."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from gateway.webhooks import webhook_sender, webhook_work
from gateway.webhooks.webhook_sender import WebhookSender
from gateway.webhooks.webhook_work import WebhookWork
from shared.store.deliveries import CLAIM_S, Deliveries
from shared.store.errors import StoreUnavailable
from shared.store.queue import Queue
from shared.store.webhooks import WebhookRecords
from shared.webhooks import retry_schedule
from shared.webhooks.address_check import AllowedAddresses
from shared.webhooks.webhook_delivery import Delivery, DeliveryState, notify_of
from shared.webhooks.webhook_endpoint import WebhookEndpoint
from shared.webhooks.webhook_signature import new_secret
from tests.harness.receivers import (
    Answer,
    answers,
    answers_in_turn,
    closes,
    drips,
    floods,
    hangs,
    receiver,
    self_signed,
    speaks_no_http,
)
from tests.harness.waiting import eventually
from tests.store.conftest import TENANT, open_queue, submit
from tests.store.webhooks import create, tell

LOOPBACK = AllowedAddresses.of(("127.0.0.0/8",))


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    """On one kind of server: what differs is in test_deliveries.py."""
    async with open_queue(redis_url) as queue:
        yield queue


@pytest.fixture
def records(queue: Queue) -> WebhookRecords:
    return WebhookRecords(queue)


@pytest.fixture
def deliveries(queue: Queue) -> Deliveries:
    return Deliveries(queue)


@pytest.fixture
async def work(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WebhookWork]:
    monkeypatch.setattr(webhook_work, "_POLL_S", 0.1)
    made = WebhookWork(queue, WebhookSender(LOOPBACK))
    yield made
    await made.close()


async def end_a_job(queue: Queue, *endpoints: WebhookEndpoint, kind: str = "job") -> str:
    job = await submit(queue, notify=notify_of(kind, [each.id for each in endpoints]))
    await queue.cancel(TENANT, job.id)
    return job.id


async def delivery_of(
    deliveries: Deliveries, endpoint: WebhookEndpoint, n_tries: int = 1
) -> Delivery:
    async def tried() -> Delivery | None:
        found, _ = await deliveries.list(endpoint.id, "", 10)
        return next((each for each in found if len(each.tries) >= n_tries), None)

    found = await eventually(tried, f"{n_tries} tries")
    assert found is not None
    return found


async def test_those_who_have_subscribed_are_told(
    queue: Queue, records: WebhookRecords, work: WebhookWork, deliveries: Deliveries
) -> None:
    async with receiver(answers(200)) as there, receiver(answers(200)) as elsewhere:
        old = new_secret()
        endpoint = await create(records, url=there.url, old_secret=old, old_until=1e12)
        await create(records, url=elsewhere.url, event_types=("job.completed", "batch.completed"))
        await create(records, url=elsewhere.url, disabled="why")
        await create(records, url=elsewhere.url, tenant="other")
        job_id = await end_a_job(queue)
        await work.keep_working()
        delivery = await delivery_of(deliveries, endpoint)
        (call,) = there.calls
    assert not elsewhere.calls
    assert delivery.state is DeliveryState.DELIVERED
    assert call.headers["webhook-id"] == delivery.id
    for secret in (endpoint.secret, old):
        client = OpenAI(api_key="x", webhook_secret=secret)
        told: Any = client.webhooks.unwrap(call.body, call.headers)
        assert (told.type, told.data.id) == ("job.cancelled", job_id)


BAD: list[Answer] = [hangs, drips, floods, speaks_no_http, closes, *map(answers, (302, 404, 500))]


async def test_bad_receivers_are_tried_again_and_delay_no_good_one(
    queue: Queue,
    records: WebhookRecords,
    work: WebhookWork,
    deliveries: Deliveries,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(webhook_sender, "TIMEOUT_S", 5.0)
    async with contextlib.AsyncExitStack() as stack:
        there = [await stack.enter_async_context(receiver(each)) for each in BAD]
        untrusted = receiver(answers(200), tls=self_signed(tmp_path))
        there.append(await stack.enter_async_context(untrusted))
        good = await stack.enter_async_context(receiver(answers(200)))
        bad = [await create(records, url=each.url) for each in there]
        healthy = await create(records, url=good.url)
        for _ in range(8):
            await end_a_job(queue)
        await work.keep_working()

        async def all_there() -> bool:
            return len(good.calls) == 8

        await eventually(all_there, "the events of the good one, before the others time out")
        (hanging, _) = await deliveries.list(bad[0].id, "", 10)
        assert not any(each.tries for each in hanging)
        for endpoint in bad:
            delivery = await delivery_of(deliveries, endpoint)
            assert delivery.state is DeliveryState.PENDING
            assert delivery.next_at is not None
    assert (await delivery_of(deliveries, healthy)).state is DeliveryState.DELIVERED
    assert len({call.headers["webhook-id"] for call in good.calls}) == 8


async def test_what_has_no_room_begins_as_soon_as_a_try_has_ended(
    queue: Queue,
    records: WebhookRecords,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of three endpoints of a tenant that may have one try at a time; by claims of 30 s."""
    monkeypatch.setattr(webhook_work, "_POLL_S", 0.1)
    monkeypatch.setattr(webhook_work, "_MOST_OF_TENANT", 1)
    async with contextlib.AsyncExitStack() as stack:
        there = [await stack.enter_async_context(receiver(answers(200))) for _ in range(3)]
        for each in there:
            await create(records, url=each.url)
        await end_a_job(queue)
        work = WebhookWork(queue, WebhookSender(LOOPBACK))
        await work.keep_working()

        async def all_told() -> bool:
            return all(len(each.calls) == 1 for each in there)

        try:
            await eventually(all_told, "each has its event", CLAIM_S / 2)
        finally:
            await work.close()


async def test_the_last_try_ends_it(
    queue: Queue,
    records: WebhookRecords,
    work: WebhookWork,
    deliveries: Deliveries,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry_schedule, "DELAYS_S", (0.0, 0.0))
    async with receiver(answers(500)) as there:
        endpoint = await create(records, url=there.url)
        await end_a_job(queue)
        await work.keep_working()
        delivery = await delivery_of(deliveries, endpoint, 3)
    assert delivery.state is DeliveryState.FAILED
    assert len(there.calls) == 3


async def test_410_disables_an_endpoint(
    queue: Queue,
    records: WebhookRecords,
    work: WebhookWork,
    deliveries: Deliveries,
) -> None:
    async with receiver(answers(410)) as there:
        endpoint = await create(records, url=there.url)
        await end_a_job(queue)
        await work.keep_working()
        delivery = await delivery_of(deliveries, endpoint)
        assert delivery.state is DeliveryState.FAILED
        found = await records.get(TENANT, endpoint.id)
        assert found is not None
        assert "410" in found.disabled
        await end_a_job(queue)
        await end_a_job(queue, endpoint)

        async def all_is_read() -> bool:
            return not (await deliveries.backlog()).ended

        await eventually(all_is_read, "events are taken")
        await tell(queue, endpoint)  # by a process that has read the endpoint before

        async def none_is_due() -> bool:
            return not (await deliveries.backlog()).endpoints

        await eventually(none_is_due, "it is given up")
        assert len(there.calls) == 1


async def test_retry_after_is_honoured(
    queue: Queue, records: WebhookRecords, work: WebhookWork, deliveries: Deliveries
) -> None:
    async with receiver(answers(429, "retry-after: 7200")) as there:
        endpoint = await create(records, url=there.url)
        await end_a_job(queue)
        await work.keep_working()
        delivery = await delivery_of(deliveries, endpoint)
    assert delivery.next_at is not None
    assert 7190 < delivery.next_at - (await deliveries.due())[0] < 8000


async def test_nothing_is_lost_or_sent_again_while_redis_is_away(
    queue: Queue,
    records: WebhookRecords,
    work: WebhookWork,
    deliveries: Deliveries,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of three events that fail, hang and are delivered."""
    monkeypatch.setattr(webhook_work, "_POLL_S", 0.05)
    calls: Counter[str] = Counter()

    def fails_twice(name: str) -> Any:
        do = getattr(work._deliveries, name)

        async def called(*arguments: Any) -> Any:
            calls[name] += bool(arguments[-1])
            if arguments[-1] and calls[name] <= 2:
                raise StoreUnavailable
            return await do(*arguments)

        return called

    for name in ("end", "add"):
        monkeypatch.setattr(work._deliveries, name, fails_twice(name))
    async with receiver(answers_in_turn(answers(500), hangs, answers(200))) as there:
        endpoint = await create(records, url=there.url)
        for _ in range(3):
            await end_a_job(queue)
        await work.keep_working()

        async def states() -> bool:
            found, _ = await deliveries.list(endpoint.id, "", 10)
            return sorted((each.state, each.n_tries) for each in found) == [
                ("delivered", 1), ("pending", 0), ("pending", 1),
            ]  # fmt: skip

        await eventually(states, "all is stored")
        assert len(there.calls) == 3


async def test_a_burst_is_delivered_once_by_several_processes(
    queue: Queue, records: WebhookRecords, deliveries: Deliveries
) -> None:
    """And what nobody has subscribed to delays nothing."""
    several = [WebhookWork(queue, WebhookSender(LOOPBACK)) for _ in range(3)]
    async with receiver(answers(200)) as there:
        await create(records, url=there.url)
        for number in range(300):
            job = await submit(queue, notify=notify_of("job") if number % 5 == 0 else "")
            await queue.cancel(TENANT, job.id)
        for work in several:
            await work.keep_working()

        async def all_there() -> bool:
            counts = (await deliveries.backlog()).counts
            return counts.get("delivered") == 60

        try:
            await eventually(all_there, "each event is delivered")
        finally:
            for work in several:
                await work.close()
        assert len({call.headers["webhook-id"] for call in there.calls}) == len(there.calls) == 60
