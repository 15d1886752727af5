"""Deliveries to webhook endpoints: each is tried by one process at a time, and has an end; the work
that makes them from what has ended, with receivers of all kinds."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gateway.webhooks import webhook_work
from gateway.webhooks.webhook_sender import WebhookSender
from gateway.webhooks.webhook_work import WebhookWork
from shared.store import keys
from shared.store import webhooks as module
from shared.store.ended import EndedStreams, Reader
from shared.store.errors import StoreUnavailable
from shared.store.webhooks import CLAIM_S, Address, Deliveries, Taken, WebhookRecords
from shared.webhooks import retry_schedule
from shared.webhooks.address_check import AllowedAddresses
from shared.webhooks.webhook_delivery import (
    Delivery,
    DeliveryState,
    Event,
    Try,
    TryResult,
    notify_of,
)
from shared.webhooks.webhook_endpoint import EVENT_TYPES, WebhookEndpoint, new_endpoint_id
from shared.webhooks.webhook_signature import new_secret
from tests.harness.receivers import (
    answers,
    answers_in_turn,
    hangs,
    receiver,
)
from tests.harness.waiting import eventually
from tests.store.conftest import TENANT, Case

FAILED, DELIVERED = Try(time.time(), 500, "", 3), Try(time.time() + 1, 200, "", 4)
HAS_FAILED = TryResult(FAILED, DeliveryState.FAILED)
IS_DELIVERED = TryResult(DELIVERED, DeliveryState.DELIVERED)
LOOPBACK = AllowedAddresses.of(("127.0.0.0/8",))
_numbers = itertools.count(1)


class Hooks:
    """Endpoints, and the deliveries to them."""

    def __init__(self, case: Case) -> None:
        self.queue, self.server = case.queue, case.server
        self.records, self.deliveries = WebhookRecords(self.queue), Deliveries(self.queue)
        self._submit = case.submit

    async def create(self, url: str = "https://example.com/", **changes: Any) -> WebhookEndpoint:
        """Store an endpoint that has subscribed to everything."""
        endpoint = WebhookEndpoint(
            id=new_endpoint_id(), tenant=TENANT, name="n", url=url, event_types=EVENT_TYPES,
            secret=new_secret(), created_at=1.0, updated_at=1.0,
        )  # fmt: skip
        endpoint = endpoint._replace(**changes)
        await self.records.create(endpoint)
        return endpoint

    async def tell(self, *endpoints: WebhookEndpoint, events: Sequence[Event] = ()) -> int:
        """Have events, a new one if none are given, delivered to each of these endpoints.

        Returns how many were dropped.
        """
        found = [(each, event) for event in events or [new_event()] for each in endpoints]
        at = (await EndedStreams(self.queue, Reader.WEBHOOKS).positions()).get(0, "")
        dropped = await self.deliveries.add(0, at, at or "0-1", found)
        assert dropped is not None
        return dropped

    async def end_a_job(self, *endpoints: WebhookEndpoint) -> str:
        job = await self._submit(notify=notify_of("job", [each.id for each in endpoints]))
        await self.queue.cancel(TENANT, job.id)
        return job.id

    async def take(self, endpoint: WebhookEndpoint, most: int = 4) -> list[Taken]:
        return await self.deliveries.take({address(endpoint): most})

    async def due(self) -> list[Address]:
        return (await self.deliveries.due())[1]

    async def end(self, *tried: tuple[Taken, TryResult]) -> int:
        return await self.deliveries.end(replace(taken, result=result) for taken, result in tried)

    async def only(self, endpoint: WebhookEndpoint) -> Delivery:
        ((shown,), more) = await self.deliveries.list(endpoint.id, "", 10)
        assert not more
        return shown

    async def tried(self, endpoint: WebhookEndpoint, n_tries: int = 1) -> Delivery:
        """A delivery that was tried so often."""

        async def find() -> Delivery | None:
            found, _ = await self.deliveries.list(endpoint.id, "", 10)
            return next((each for each in found if len(each.tries) >= n_tries), None)

        found = await eventually(find, f"{n_tries} tries")
        assert found is not None
        return found


def new_event() -> Event:
    """That of a job that has ended."""
    return Event("job.completed", f"job_{next(_numbers):027x}", 1_000_000)


def address(endpoint: WebhookEndpoint) -> Address:
    return Address(endpoint.id, endpoint.tenant)


@pytest.fixture
def hooks(live: Case) -> Hooks:
    return Hooks(live)


async def test_a_delivery_is_taken_once_until_its_claim_has_run_out(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = await hooks.create()
    assert await hooks.due() == []
    await hooks.tell(endpoint)
    assert await hooks.due() == [address(endpoint)]
    monkeypatch.setattr(module, "CLAIM_S", 0.0)
    (first,) = await hooks.take(endpoint)
    assert first.endpoint == endpoint
    monkeypatch.setattr(module, "CLAIM_S", 30.0)
    (second,) = await hooks.take(endpoint)  # the process of the first was killed
    assert second.delivery == first.delivery
    assert (await hooks.take(endpoint), await hooks.due()) == ([], [])
    assert await hooks.end((first, HAS_FAILED)) == 0  # or it had only stopped
    assert await hooks.end((second, IS_DELIVERED)) == 1


async def test_a_delivery_has_an_end_and_is_sent_again(hooks: Hooks) -> None:
    endpoint = await hooks.create()
    await hooks.tell(endpoint)
    (first,) = await hooks.take(endpoint)
    now_s, _ = await hooks.deliveries.due()
    retried = TryResult(FAILED, DeliveryState.PENDING, next_at=now_s)
    assert await hooks.end((first, retried)) == 1
    assert await hooks.end((first, IS_DELIVERED)) == 0
    assert (await hooks.only(endpoint)).next_at == pytest.approx(now_s)
    (second,) = await hooks.take(endpoint)
    assert (second.delivery.n_tries, second.delivery.tries) == (1, (FAILED,))
    assert await hooks.end((second, IS_DELIVERED)) == 1
    assert await hooks.end((second, retried)) == 0
    assert await hooks.only(endpoint) == second.delivery._replace(
        state=DeliveryState.DELIVERED, n_tries=2, tries=(FAILED, DELIVERED)
    )
    assert await hooks.due() == []
    names = [keys.first(word, endpoint.id) for word in ("deliveries", "delivery_records")]
    assert all(0 < hooks.server.ttl(name) <= 7 * 86_400 for name in names)
    assert (await hooks.deliveries.backlog()).counts == {"retried": 1, "delivered": 1}
    resend, webhook_id = hooks.deliveries.resend, first.delivery.id
    assert await resend(address(endpoint), "wh_x") is None
    for _ in range(2):  # what has ended or not
        again = await resend(address(endpoint), webhook_id)
        assert again is not None
        assert (again.state, again.n_tries, again.tries) == ("pending", 0, (FAILED, DELIVERED))
    assert [hooks.server.ttl(name) for name in names] == [-1, -1]
    (third,) = await hooks.take(endpoint)
    await resend(address(endpoint), webhook_id)
    assert await hooks.end((third, IS_DELIVERED)) == 0  # it is tried anew
    (fourth,) = await hooks.take(endpoint)
    assert await hooks.end((fourth, HAS_FAILED)) == 1
    assert (await hooks.only(endpoint)).state == "failed"


async def test_a_deleted_endpoint_leaves_nothing(hooks: Hooks) -> None:
    endpoint, other = await hooks.create(), await hooks.create()
    await hooks.tell(endpoint, other, events=[new_event(), new_event()])
    one, two = await hooks.take(endpoint)
    await hooks.end((one, IS_DELIVERED))
    await hooks.records.delete(TENANT, endpoint.id)
    assert await hooks.end((two, HAS_FAILED)) == 0
    await hooks.tell(endpoint)  # by a process that has read the endpoint before
    await hooks.records.delete(TENANT, other.id)
    assert await hooks.deliveries.take({address(each): 4 for each in (endpoint, other)}) == []
    assert await hooks.due() == []
    assert not list(hooks.server.scan_iter("*deliver*"))


async def test_deliveries_are_bounded_and_listed_in_order(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_PENDING", 5)
    monkeypatch.setattr(module, "MOST_KEPT", 3)
    endpoint = await hooks.create()
    assert await hooks.tell(endpoint, events=[new_event() for _ in range(8)]) == 3
    assert (await hooks.deliveries.backlog()).counts == {"dropped": 3}
    taken = await hooks.take(endpoint, 8)
    results = [
        (each, IS_DELIVERED._replace(done=DELIVERED._replace(at=time.time() + n)))
        for n, each in enumerate(taken)
    ]
    assert await hooks.end(*results) == 5
    assert hooks.server.hlen(keys.first("delivery_records", endpoint.id)) == 3
    waiting = [new_event() for _ in range(2)]
    await hooks.tell(endpoint, events=waiting)
    order = sorted(each.webhook_id(endpoint.id) for each in waiting)  # due at the same time
    order += [each.delivery.id for each in taken[:1:-1]]
    found, _ = await hooks.deliveries.list(endpoint.id, "", 9)
    assert [each.id for each in found] == order


@pytest.mark.parametrize("kept_s", [50.0, 150.0])
async def test_what_ended_long_ago_is_neither_shown_nor_kept(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch, kept_s: float
) -> None:
    endpoint = await hooks.create()
    await hooks.tell(endpoint, events=[new_event() for _ in range(3)])
    one, two, three = await hooks.take(endpoint)
    now = IS_DELIVERED._replace(done=DELIVERED._replace(at=time.time()))
    earlier = IS_DELIVERED._replace(done=DELIVERED._replace(at=time.time() - 100))
    await hooks.end((one, earlier), (two, earlier))
    monkeypatch.setattr(module, "KEPT_S", kept_s)
    (_, *found), _ = await hooks.deliveries.list(endpoint.id, "", 10)
    assert len(found) == (0 if kept_s < 100 else 2)
    await hooks.end((three, now))
    left = hooks.server.hlen(keys.first("delivery_records", endpoint.id))
    assert left == hooks.server.zcard(keys.first("deliveries", endpoint.id))
    assert left == (1 if kept_s < 100 else 3)


# --- the work, on one kind of server ---


@pytest.fixture
def sent(alone: Case) -> Hooks:
    return Hooks(alone)


@pytest.fixture
async def work(sent: Hooks, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WebhookWork]:
    monkeypatch.setattr(webhook_work, "_POLL_S", 0.05)
    made = WebhookWork(sent.queue, WebhookSender(LOOPBACK))
    yield made
    await made.close()


async def test_what_has_no_room_begins_as_soon_as_a_try_has_ended(
    sent: Hooks, work: WebhookWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three endpoints of a tenant that may have one try at a time; by claims of 30 s."""
    monkeypatch.setattr(webhook_work, "_MOST_OF_TENANT", 1)
    async with contextlib.AsyncExitStack() as stack:
        there = [await stack.enter_async_context(receiver(answers(200))) for _ in range(3)]
        for each in there:
            await sent.create(each.url)
        await sent.end_a_job()
        await work.keep_working()
        told = lambda: all(len(each.calls) == 1 for each in there)  # noqa: E731
        await eventually(told, "each has its event", CLAIM_S / 2)


@pytest.mark.parametrize(
    ("answer", "state", "calls"),
    [
        (answers(500), DeliveryState.FAILED, 3),
        (answers(410), DeliveryState.FAILED, 1),
        (answers(429, "retry-after: 7200"), DeliveryState.PENDING, 1),
    ],
)
async def test_what_an_answer_means(
    sent: Hooks, work: WebhookWork, monkeypatch: pytest.MonkeyPatch, answer: Any, state: str,
    calls: int,
) -> None:  # fmt: skip
    """The last try ends a delivery, 410 its endpoint, and a receiver may want to wait."""
    monkeypatch.setattr(retry_schedule, "DELAYS_S", (0.0, 0.0))
    async with receiver(answer) as there:
        endpoint = await sent.create(there.url)
        await sent.end_a_job()
        await work.keep_working()
        delivery = await sent.tried(endpoint, calls)
        assert delivery.state is state
        if state is DeliveryState.PENDING:
            delivery = await sent.tried(endpoint, calls)  # a list reads times before records
            assert delivery.next_at is not None
            assert 7190 < delivery.next_at - (await sent.deliveries.due())[0] < 8000
        elif calls == 1:
            found = await sent.records.get(TENANT, endpoint.id)
            assert found is not None
            assert "410" in found.disabled
            await sent.end_a_job(endpoint)
            await sent.tell(endpoint)  # by a process that has read the endpoint before

            async def is_given_up() -> bool:
                backlog = await sent.deliveries.backlog()
                return not (backlog.ended or backlog.endpoints)

            await eventually(is_given_up, "further events are given up")
        assert len(there.calls) == calls


async def test_nothing_is_lost_or_sent_again_while_redis_is_away(
    sent: Hooks, work: WebhookWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three events that fail, hang and are delivered."""
    failures: Counter[str] = Counter()

    def fails_twice(name: str) -> Any:
        do = getattr(work._deliveries, name)

        async def called(*arguments: Any) -> Any:
            failures[name] += bool(arguments[-1])
            if arguments[-1] and failures[name] <= 2:
                raise StoreUnavailable
            return await do(*arguments)

        return called

    for name in ("end", "add"):
        monkeypatch.setattr(work._deliveries, name, fails_twice(name))
    async with receiver(answers_in_turn(answers(500), hangs, answers(200))) as there:
        endpoint = await sent.create(there.url)
        for _ in range(3):
            await sent.end_a_job()
        await work.keep_working()

        async def all_is_stored() -> bool:
            found, _ = await sent.deliveries.list(endpoint.id, "", 10)
            states = sorted((each.state, each.n_tries) for each in found)
            return states == [("delivered", 1), ("pending", 0), ("pending", 1)]

        await eventually(all_is_stored, "all is stored")
        assert len(there.calls) == 3
