"""A subscription on which nothing arrives any more, and one that stays."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from redis import Redis

from shared.platform.tasks import end
from shared.store import keys
from shared.store import subscription as module
from shared.store.servers import Servers
from shared.store.subscription import Subscription, listening, send
from tests.harness.proxy import StallingProxy
from tests.harness.servers import RedisServer, one_redis_only
from tests.harness.waiting import eventually

pytestmark = one_redis_only  # test_masters.py has those of a cluster

WORKER = "w-1"
CHANNEL = keys.control_channel(WORKER)


@pytest.fixture
def store(redis_server: RedisServer, redis_url: str) -> Iterator[Redis]:
    with redis_server.client() as client:
        yield client


class Subscriber:
    """A subscription that counts what happens to it."""

    def __init__(self, servers: Servers) -> None:
        self.messages: list[bytes] = []
        self.events: list[str] = []
        self.subscription = Subscription(
            servers,
            0,
            CHANNEL,
            self.messages.append,
            lambda: self.events.append("connected"),
            lambda: self.events.append("lost"),
            lambda: self.events.append("silent"),
        )


@contextlib.asynccontextmanager
async def subscribed(url: str) -> AsyncIterator[Subscriber]:
    async with Servers(url) as servers:
        subscriber = Subscriber(servers)
        task = asyncio.create_task(subscriber.subscription.run())
        try:
            await is_true(lambda: subscriber.events == ["connected"], "it is subscribed")
            yield subscriber
        finally:
            await end([task])


async def is_true(condition: Callable[[], bool], what: str) -> None:
    async def check() -> bool:
        return condition()

    await eventually(check, what, 30.0)


async def test_a_connection_that_falls_silent_is_replaced(
    redis_server: RedisServer, store: Redis
) -> None:
    async with (
        StallingProxy(redis_server.port).running() as proxy,
        subscribed(proxy.url) as subscriber,
    ):
        store.publish(CHANNEL, "one")
        await is_true(lambda: subscriber.messages == [b"one"], "the first message arrives")
        proxy.stall()
        await is_true(lambda: "lost" in subscriber.events, "the silence is noticed")
        assert not subscriber.subscription.connected.is_set()
        proxy.resume()
        await is_true(subscriber.subscription.connected.is_set, "it is subscribed again")
        assert subscriber.events == ["connected", "silent", "lost", "connected"]
        store.publish(CHANNEL, "two")
        await is_true(lambda: b"two" in subscriber.messages, "messages arrive again")


async def test_a_connection_that_is_cut_is_replaced_and_a_calm_one_is_not(
    redis_url: str, store: Redis
) -> None:
    async with subscribed(redis_url) as subscriber:
        await asyncio.sleep(2.5 * module._PING_S)
        assert subscriber.events == ["connected"]
        store.client_kill_filter(_type="pubsub")
        await is_true(lambda: len(subscriber.events) == 3, "it is subscribed again")
        assert subscriber.events == ["connected", "lost", "connected"]


async def test_workers_are_sent_messages_and_known_by_their_subscriptions(redis_url: str) -> None:
    async with subscribed(redis_url) as subscriber, Servers(redis_url) as servers:
        assert await listening(servers, [WORKER, "other"]) == {WORKER}
        await send(servers, [WORKER], b"first")
        await send(servers, [WORKER, "other"], b"second")
        await is_true(lambda: len(subscriber.messages) >= 2, "both messages arrive")
        assert subscriber.messages == [b"first", b"second"]
    assert await listening(servers, []) == set()
