"""A subscription on which nothing arrives any more: a half-open connection, or the wrong server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import pytest
from redis import Redis

from shared.platform.tasks import end
from shared.store.redis import subscription as module
from shared.store.redis.redis_client import connect
from shared.store.redis.subscription import Subscription
from tests.harness.proxy import StallingProxy
from tests.harness.servers import RedisServer, one_redis_only
from tests.harness.waiting import eventually

pytestmark = one_redis_only  # test_cluster.py has those of a cluster

CHANNEL = "flotilla:tokens:gw-1"
DEADLINE_S = 30.0
"""On a calm machine four seconds."""


class Subscriber:
    """A subscription that counts what happens to it."""

    def __init__(self, url: str) -> None:
        self.messages: list[bytes] = []
        self.connects = self.silences = 0
        self.subscription = Subscription(
            connect(url),
            CHANNEL,
            self.messages.append,
            self._on_connected,
            on_silent=self._on_silent,
        )

    def _on_connected(self) -> None:
        self.connects += 1

    def _on_silent(self) -> None:
        self.silences += 1


@contextlib.asynccontextmanager
async def subscribed(url: str) -> AsyncIterator[Subscriber]:
    subscriber = Subscriber(url)
    task = asyncio.create_task(subscriber.subscription.run())
    try:
        await is_true(lambda: subscriber.connects == 1, "it is subscribed")
        yield subscriber
    finally:
        await end([task])


async def is_true(condition: Callable[[], bool], what: str) -> None:
    async def check() -> bool:
        return condition()

    await eventually(check, what, DEADLINE_S)


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
        stalled = time.monotonic()
        await is_true(lambda: subscriber.silences == 1, "the silence is noticed")
        print(f"noticed after {time.monotonic() - stalled:.1f} s")
        assert not subscriber.subscription.connected.is_set()
        proxy.resume()
        await is_true(lambda: subscriber.connects == 2, "it is subscribed again")
        store.publish(CHANNEL, "two")
        await is_true(lambda: b"two" in subscriber.messages, "messages arrive again")


async def test_a_calm_channel_is_not_replaced(redis_url: str) -> None:
    async with subscribed(redis_url) as subscriber:
        await asyncio.sleep(2.5 * module._PING_S)
        assert (subscriber.connects, subscriber.silences) == (1, 0)


async def test_a_channel_that_redis_does_not_know_any_more_is_subscribed_anew(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with subscribed(redis_url) as subscriber:
        observe = subscriber.subscription.observe
        observe(subscribed=True)
        observe(subscribed=False)
        observe(subscribed=True)
        for _ in range(module._MISSED_LOOKS - 1):
            observe(subscribed=False)
        assert subscriber.silences == 0
        observe(subscribed=False)
        assert subscriber.silences == 1
        await is_true(lambda: subscriber.connects == 2, "it is subscribed again")
        for _ in range(2 * module._MISSED_LOOKS):  # again only after some time
            observe(subscribed=False)
        assert subscriber.silences == 1
        monkeypatch.setattr(subscriber.subscription, "_repair_after", 0.0)
        observe(subscribed=False)
        assert subscriber.silences == 2


async def test_a_channel_that_redis_never_showed_is_left_alone(redis_url: str) -> None:
    """A proxy may answer PUBSUB with what it likes."""
    async with subscribed(redis_url) as subscriber:
        for _ in range(3 * module._MISSED_LOOKS):
            subscriber.subscription.observe(subscribed=False)
        assert subscriber.silences == 0
