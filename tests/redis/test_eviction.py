"""A Redis that evicts keys is refused at start, and found later."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from redis import Redis

from shared.platform.settings import SettingsError
from shared.store.redis.eviction import EvictionMonitor, refuse_evicting
from shared.store.redis.servers import Servers
from tests.harness.servers import free_port, one_redis_only


@pytest.fixture
def limited(store: Redis) -> Iterator[Redis]:
    """A Redis whose memory is limited."""
    store.config_set("maxmemory", 100 << 20)
    yield store
    store.config_set("maxmemory-policy", "noeviction")
    store.config_set("maxmemory", 0)


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "volatile-lru"])
async def test_an_evicting_redis_is_refused(limited: Redis, redis_url: str, policy: str) -> None:
    async with Servers(redis_url) as servers:
        await refuse_evicting(servers.primary)
        limited.config_set("maxmemory-policy", policy)
        with pytest.raises(SettingsError, match=f"{policy}.*noeviction"):
            await refuse_evicting(servers.primary)
        limited.config_set("maxmemory", 0)  # without a limit it never evicts
        await refuse_evicting(servers.primary)


async def test_a_redis_that_can_not_be_asked_is_not_refused() -> None:
    async with Servers(f"redis://127.0.0.1:{free_port()}/0") as away:
        await refuse_evicting(away.primary)


@one_redis_only
async def test_a_change_is_found_and_logged_once(
    limited: Redis, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flotilla.redis")
    servers = Servers(redis_url)
    monitor = EvictionMonitor(servers.all)
    try:
        await monitor.check()
        assert (monitor.problem, caplog.messages) == ("", [])
        limited.config_set("maxmemory-policy", "allkeys-lru")
        for _ in range(3):
            await monitor.check()
            assert "allkeys-lru" in monitor.problem
        assert len(caplog.messages) == 1
        limited.config_set("maxmemory-policy", "noeviction")
        await monitor.check()
        assert (monitor.problem, len(caplog.messages)) == ("", 2)
    finally:
        await servers.close()


@one_redis_only
async def test_evicted_keys_are_found(
    limited: Redis, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    servers = Servers(redis_url)
    monitor = EvictionMonitor(servers.all)
    try:
        await monitor.check()
        limited.config_set("maxmemory-policy", "allkeys-random")
        limited.config_set("maxmemory", int(limited.info("memory")["used_memory"]) + (1 << 20))
        for number in range(200):
            limited.set(f"filler {number}", b"x" * 20_000)
        assert limited.info("stats")["evicted_keys"]
        limited.config_set("maxmemory-policy", "noeviction")
        await monitor.check()
        assert "evicted" in monitor.problem
        assert "jobs may be lost" in caplog.text
        await monitor.check()
        assert monitor.problem == ""
    finally:
        await servers.close()
