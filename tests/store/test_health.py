"""Redis servers that can't be used: refused at a start, found later; and their memory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator

import pytest
from redis import Redis

from shared.platform.settings import SettingsError
from shared.platform.tasks import end
from shared.store import health, keys
from shared.store.health import (
    FORMAT_VERSION,
    FormatMismatch,
    Health,
    Memory,
    refuse_unfit,
    write_problems,
)
from shared.store.servers import Servers
from tests.harness.servers import RedisCluster, RedisServer, call, fleet_on_one_node, free_port
from tests.harness.settings import Settings
from tests.harness.waiting import eventually
from tests.store.conftest import make_job, open_queue

MB = 1 << 20


@pytest.fixture
def client(own_redis: RedisServer) -> Iterator[Redis]:
    with own_redis.client() as client:
        yield client


@pytest.fixture
async def servers(own_redis: RedisServer) -> AsyncIterator[Servers]:
    async with Servers(own_redis.url) as servers:
        yield servers


async def start(server: RedisServer, **settings: object) -> None:
    """What a process does first. Raises SettingsError."""
    await refuse_unfit(Settings(redis_url=server.url, **settings))


# --- at a start ---


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_a_server_that_evicts_is_refused(
    own_redis: RedisServer, client: Redis, policy: str
) -> None:
    client.config_set("maxmemory", 100 * MB)
    await start(own_redis)
    client.config_set("maxmemory-policy", policy)
    with pytest.raises(SettingsError, match=f"{own_redis.port}/0.*{policy}.*noeviction"):
        await start(own_redis)
    client.config_set("maxmemory", 0)  # without a limit it never evicts
    await start(own_redis)


async def test_a_durable_fleet_needs_every_write_on_disk(
    own_redis: RedisServer, client: Redis
) -> None:
    await start(own_redis)
    with pytest.raises(SettingsError, match="appendfsync is everysec, it has to be always"):
        await start(own_redis, durable=True)
    client.config_set("appendfsync", "always")
    await start(own_redis, durable=True)
    client.config_set("appendonly", "no")
    with pytest.raises(SettingsError, match="appendonly is no"):
        await start(own_redis, durable=True)


async def test_one_without_an_append_only_file_is_told(
    own_redis: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.config_set("appendonly", "no")
    await start(own_redis)
    assert "jobs are lost when Redis stops; set it to yes" in caplog.text


async def test_one_that_refuses_writes_for_now_is_not_refused(
    own_redis: RedisServer, client: Redis
) -> None:
    client.config_set("min-replicas-to-write", 1)
    await start(own_redis)


async def test_what_is_away_or_hidden_is_not_refused(
    own_redis: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    away = f"redis://127.0.0.1:{free_port()}/0"
    await refuse_unfit(Settings(redis_url=away, durable=True))
    client.acl_setuser("default", enabled=True, nopass=True, commands=["-config", "-info"])
    await start(own_redis, durable=True)
    assert "can't be read" in caplog.text
    assert "set maxmemory-policy noeviction" in caplog.text


async def test_an_empty_database_is_marked_and_another_format_is_refused(
    own_redis: RedisServer, client: Redis
) -> None:
    for _ in range(2):
        await start(own_redis)
        assert client.get(keys.FORMAT) == str(FORMAT_VERSION).encode()
    for value in (b"", b"two", b"\xff", b"-2"):
        client.set(keys.FORMAT, value)
        with pytest.raises(FormatMismatch, match=r"of format .* this release needs"):
            await start(own_redis)


async def test_of_two_formats_that_start_at_once_one_wins(
    own_redis: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have found the database empty: the second marks it after the first."""
    async with Servers(own_redis.url) as first, Servers(own_redis.url) as second:
        assert await health._check_format(first)
        monkeypatch.setattr(health, "FORMAT_VERSION", FORMAT_VERSION + 1)
        with pytest.raises(FormatMismatch) as refused:
            await health._check_format(second)
    assert refused.value.found == str(FORMAT_VERSION)


# --- on a cluster ---


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    cluster = fleet_on_one_node(tmp_path_factory.mktemp("cluster"))
    with contextlib.closing(cluster):
        cluster.start()
        yield cluster


async def test_the_first_process_fixes_the_number_of_shards(cluster: RedisCluster) -> None:
    node = cluster.masters[0]
    call(node, "FLUSHALL")
    for _ in range(2):
        await refuse_unfit(Settings(redis_url=cluster.url, shards=3))
    assert call(node, "GET", keys.SHARDS) == b"3"
    with pytest.raises(SettingsError, match=r"FLOTILLA_SHARDS is 2, and the fleet .* has 3 shards"):
        await refuse_unfit(Settings(redis_url=cluster.url, shards=2))


async def test_a_server_of_the_other_kind_is_refused(
    cluster: RedisCluster, own_redis: RedisServer
) -> None:
    node = cluster.masters[0]
    with pytest.raises(SettingsError, match="is a node of a cluster: use redis\\+cluster://"):
        await refuse_unfit(Settings(redis_url=f"redis://:secret@127.0.0.1:{node.port}"))
    alone = own_redis.url.replace("redis:", "redis+cluster:").removesuffix("/0")
    with pytest.raises(SettingsError, match="is no cluster: use redis://") as caught:
        await refuse_unfit(Settings(redis_url=alone))
    assert "secret" not in str(caught.value)


async def test_each_slot_is_tested_by_itself(cluster: RedisCluster) -> None:
    """And no key is written where its slot is not."""
    node = cluster.masters[0]
    call(node, "FLUSHALL")
    async with open_queue(cluster.url, shards=3) as queue:
        assert await write_problems(queue, "gw") == ("", ["", "", ""])
        found = {key.decode() for key in call(node, "KEYS", "*")}
        assert found == {keys.PROBE, *(keys.base(n) + "probe" for n in range(3))}
        assert call(cluster.masters[1], "DBSIZE") == 0


# --- while a process runs ---


async def test_a_changed_policy_is_found_and_logged_once(
    client: Redis, servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flotilla.redis")
    client.config_set("maxmemory", 100 * MB)
    looked = Health(servers)
    await looked.look()
    assert (looked.eviction, caplog.messages) == ("", [])
    client.config_set("maxmemory-policy", "allkeys-lru")
    for _ in range(3):
        await looked.look()
        assert "allkeys-lru" in looked.eviction
    assert len(caplog.messages) == 1
    client.config_set("maxmemory-policy", "noeviction")
    await looked.look()
    assert (looked.eviction, len(caplog.messages)) == ("", 2)


async def test_evicted_keys_are_found(
    client: Redis, servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    looked = Health(servers)
    await looked.look()
    client.config_set("maxmemory-policy", "allkeys-random")
    client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + MB)
    for number in range(200):
        client.set(f"filler {number}", b"x" * 20_000)
    assert client.info("stats")["evicted_keys"]
    client.config_set("maxmemory-policy", "noeviction")
    await looked.look()
    assert "evicted" in looked.eviction
    assert "jobs may be lost" in caplog.text
    await looked.look()
    assert looked.eviction == ""


async def test_a_server_that_was_away_is_checked_as_soon_as_it_is_back(
    own_redis: RedisServer, client: Redis, servers: Servers
) -> None:
    client.set(keys.FORMAT, "1")
    client.close()
    own_redis.stop()
    looked = Health(servers)
    running = asyncio.create_task(looked.run())
    await asyncio.sleep(0.05)
    own_redis.start()
    async with asyncio.timeout(60):
        with pytest.raises(FormatMismatch):
            await running
    assert "of format 1" in looked.format


async def test_above_the_mark_nothing_is_accepted(client: Redis, servers: Servers) -> None:
    looked = Health(servers, 0.9)
    await looked.look()
    assert looked.take_job(make_job())
    client.set("other", b"x" * (20 * MB))
    client.config_set("maxmemory", 40 * MB)  # of which 20 MB are for buffers
    await looked.look()
    assert not looked.take_job(make_job())
    assert "Redis uses" in looked.full
    assert "nothing new is accepted" in str(looked.refusal(0))
    client.config_set("maxmemory", 0)
    await looked.look()
    assert looked.take_job(make_job())
    assert looked.full == ""


async def test_the_memory_is_looked_at_again_when_it_is_needed(
    client: Redis, servers: Servers
) -> None:
    used = int(client.info("memory")["used_memory"])
    client.config_set("maxmemory", used + 50 * MB)
    looked = Health(servers, 0.9)
    running = asyncio.create_task(looked.run())

    async def is_refused() -> bool:
        return not looked.take(0, 8 * MB)

    async def is_taken() -> bool:
        return looked.take(0, 8 * MB)

    await eventually(is_refused, "there is no room")
    client.config_set("maxmemory", used + 5000 * MB)
    await eventually(is_taken, "there is room again")
    await end([running])


LIMIT = 1000 * MB


def memory(used: int, limit: int = LIMIT) -> Memory:
    found = Memory(0.9)
    found.looked({"used_memory": used * MB, "maxmemory": limit})
    return found


def test_without_a_limit_there_is_room_for_everything() -> None:
    for unlimited in (Memory(0.9), memory(10**6, 0)):
        assert unlimited.take(1e15)
        assert not unlimited.is_outdated
        assert not unlimited.full


def test_what_is_accepted_below_the_mark() -> None:
    assert not memory(900).take(1 * MB)
    assert not memory(5000).take(1 * MB)
    assert memory(899).take(1 * MB)
    assert not memory(5, 40 * MB).take(15.1 * MB)  # a small server keeps room for buffers
    assert memory(5, 40 * MB).take(15 * MB)
    assert memory(100).take(800 * MB)  # a large one may take all of it, several the half
    assert not memory(100).take(801 * MB)
    several = memory(100)
    assert [several.take(100 * MB) for _ in range(5)] == [True] * 4 + [False]


def test_after_an_eighth_of_the_room_the_server_is_looked_at_again() -> None:
    found = memory(100)
    assert found.take(99 * MB)
    assert not found.is_outdated
    assert found.take(1 * MB)
    assert found.is_outdated
    assert memory(900).is_outdated  # so that it is known soon when there is room again


def test_what_was_accepted_counts_until_the_second_look() -> None:
    found = memory(100)
    assert found.take(300 * MB)
    found.looked({"used_memory": 100 * MB, "maxmemory": LIMIT})  # it is not there yet
    assert not found.take(200 * MB)
    assert found.take(100 * MB)
    for used in (400, 500):
        found.looked({"used_memory": used * MB, "maxmemory": LIMIT})
    assert found.take(400 * MB)


def test_eight_gateways_do_not_accept_more_than_there_is() -> None:
    used, gateways = 0, [memory(0) for _ in range(8)]
    for _ in range(200):
        for each in gateways:
            while not each.is_outdated and each.take(5 * MB):
                used += 5
        for each in gateways:
            each.looked({"used_memory": used * MB, "maxmemory": LIMIT})
    assert 850 <= used <= 900 + 8 * 5  # one job each, as it is seen behind it
