"""Gateways that are gone are found, and their jobs unwatched."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from redis import Redis

from shared.platform.metrics.losses import LostGatewayMetrics
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.lost_gateways import LostGateways
from tests.redis.conftest import GATEWAY, gateway_messages, submit

UNATTENDED = keys.base(0) + keys.UNATTENDED


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def gateways(queue: JobQueue, registry: CollectorRegistry) -> LostGateways:
    return LostGateways(queue, LostGatewayMetrics(registry), "gw-own")


def members(store: Redis) -> set[bytes]:
    return store.smembers(keys.GATEWAYS)


async def test_the_own_gateway_is_registered_again_and_again(
    gateways: LostGateways, store: Redis
) -> None:
    for _ in range(2):
        await gateways.round()
        assert members(store) == {b"gw-own"}
        store.flushall()


async def test_a_gateway_that_two_rounds_miss_is_gone(
    gateways: LostGateways, queue: JobQueue, store: Redis, registry: CollectorRegistry
) -> None:
    job = await submit(queue, keep_s=60.0)
    store.sadd(keys.GATEWAYS, GATEWAY)
    await gateways.round()
    assert not store.exists(UNATTENDED)
    await gateways.round()
    assert store.zscore(UNATTENDED, job.id)
    assert members(store) == {b"gw-own"}
    assert registry.get_sample_value("flotilla_lost_gateways_total") == 1
    await gateways.round()
    assert registry.get_sample_value("flotilla_lost_gateways_total") == 1


async def test_a_gateway_that_is_subscribed_stays(
    gateways: LostGateways, queue: JobQueue, store: Redis
) -> None:
    await submit(queue, keep_s=60.0)
    store.sadd(keys.GATEWAYS, GATEWAY)
    await gateways.round()
    with gateway_messages(store):
        for _ in range(3):
            await gateways.round()
        await gateways.abandon([0], GATEWAY)
        assert members(store) == {b"gw-own", GATEWAY.encode()}
        assert not store.exists(UNATTENDED)
