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
from tests.store.conftest import make_job, open_case

MB = 1 << 20


@pytest.fixture
def client(own_redis: RedisServer) -> Iterator[Redis]:
    with own_redis.client() as client:
        yield client


@pytest.fixture
async def servers(own_redis: RedisServer) -> AsyncIterator[Servers]:
    async with Servers(own_redis.url) as servers:
        yield servers


# --- at a start ---

LIMITED = {"maxmemory": 100 * MB}
NEEDS: list[tuple[dict[str, object], bool, str]] = [
    (LIMITED, False, ""),
    (LIMITED | {"maxmemory-policy": "allkeys-lru"}, False, "allkeys-lru.*noeviction"),
    (LIMITED | {"maxmemory-policy": "volatile-ttl"}, False, "volatile-ttl.*noeviction"),
    ({"maxmemory-policy": "allkeys-lru"}, False, ""),  # without a limit it never evicts
    ({"min-replicas-to-write": 1}, False, ""),  # it refuses writes for now
    ({}, True, "appendfsync is everysec, it has to be always"),
    ({"appendfsync": "always"}, True, ""),
    ({"appendfsync": "always", "appendonly": "no"}, True, "appendonly is no"),
    ({"appendonly": "no"}, False, ""),
]
"""Configuration, whether the fleet is durable, and why such a server is refused."""


async def test_what_a_server_needs(
    own_redis: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    defaults = {name: client.config_get(name)[name] for row, *_ in NEEDS for name in row}
    for config, durable, problem in NEEDS:
        for name, value in (defaults | config).items():
            client.config_set(name, value)
        settings = Settings(redis_url=own_redis.url, durable=durable)
        if problem:
            with pytest.raises(SettingsError, match=f"{own_redis.port}/0.*{problem}"):
                await refuse_unfit(settings)
        else:
            await refuse_unfit(settings)
    assert "jobs are lost when Redis stops; set it to yes" in caplog.text
    assert client.get(keys.FORMAT) == str(FORMAT_VERSION).encode()
    away = f"redis://127.0.0.1:{free_port()}/0"
    await refuse_unfit(Settings(redis_url=away, durable=True))
    client.acl_setuser("default", enabled=True, nopass=True, commands=["-config", "-info"])
    await refuse_unfit(Settings(redis_url=own_redis.url, durable=True))
    assert "can't be read" in caplog.text
    for value in (b"", b"two", b"\xff", b"-2"):
        client.set(keys.FORMAT, value)
        with pytest.raises(FormatMismatch, match=r"of format .* this release needs"):
            await refuse_unfit(Settings(redis_url=own_redis.url))


async def test_of_two_formats_that_start_at_once_one_wins(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have found the database empty: the second marks it after the first."""
    async with Servers(own_redis.url) as first, Servers(own_redis.url) as second:
        assert await health._check_format(first)
        monkeypatch.setattr(health, "FORMAT_VERSION", FORMAT_VERSION + 1)
        with pytest.raises(FormatMismatch) as refused:
            await health._check_format(second)
    assert refused.value.found == str(FORMAT_VERSION)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    cluster = fleet_on_one_node(tmp_path_factory.mktemp("cluster"))
    with contextlib.closing(cluster):
        cluster.start()
        yield cluster


async def test_the_kind_of_server_and_the_number_of_shards_are_fixed(
    cluster: RedisCluster, own_redis: RedisServer
) -> None:
    node = cluster.masters[0]
    for _ in range(2):
        await refuse_unfit(Settings(redis_url=cluster.url, shards=3))
    assert call(node, "GET", keys.SHARDS) == b"3"
    alone = own_redis.url.replace("redis:", "redis+cluster:").removesuffix("/0")
    for url, shards, problem in (
        (cluster.url, 2, r"FLOTILLA_SHARDS is 2, and the fleet .* has 3 shards"),
        (f"redis://:secret@127.0.0.1:{node.port}", 1, r"is a node of a cluster: use redis\+"),
        (alone, 1, "is no cluster: use redis://"),
    ):
        with pytest.raises(SettingsError, match=problem) as caught:
            await refuse_unfit(Settings(redis_url=url, shards=shards))
        assert "secret" not in str(caught.value)


async def test_each_slot_is_tested_by_itself(cluster: RedisCluster) -> None:
    """And no key is written where its slot is not."""
    node = cluster.masters[0]
    call(node, "FLUSHALL")
    async with open_case(node, url=cluster.url, shards=3, own_clock=False) as case:
        call(node, "FLUSHALL")
        assert await write_problems(case.queue, "gw") == ("", ["", "", ""])
        found = {key.decode() for key in call(node, "KEYS", "*")}
        assert found == {keys.PROBE, *(keys.base(n) + "probe" for n in range(3))}
        assert call(cluster.masters[1], "DBSIZE") == 0


# --- while a process runs ---


async def test_a_server_that_evicts_is_found_and_logged_once(
    client: Redis, servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flotilla.redis")
    client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + MB)
    looked = Health(servers)
    await looked.look()
    assert (looked.eviction, caplog.messages) == ("", [])
    client.config_set("maxmemory-policy", "allkeys-random")
    for _ in range(3):
        await looked.look()
        assert "allkeys-random" in looked.eviction
    assert len(caplog.messages) == 1
    for number in range(200):
        client.set(f"filler {number}", b"x" * 20_000)
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


async def test_above_the_mark_nothing_is_accepted_until_there_is_room_again(
    client: Redis, servers: Servers
) -> None:
    looked = Health(servers, 0.9)
    await looked.look()
    assert looked.take_job(make_job())
    client.set("other", b"x" * (20 * MB))
    client.config_set("maxmemory", 40 * MB)  # of which 20 MB are for buffers
    await looked.look()
    assert not looked.take_job(make_job())
    assert "Redis uses" in looked.full
    assert "nothing new is accepted" in str(looked.refusal(0))
    running = asyncio.create_task(looked.run())
    client.config_set("maxmemory", 5000 * MB)

    async def is_taken() -> bool:  # who asks in vain has it looked at
        return looked.take_job(make_job())

    await eventually(is_taken, "there is room again")
    assert looked.full == ""
    await end([running])


LIMIT = 1000 * MB


def memory(used: int, limit: int = LIMIT) -> Memory:
    found = Memory(0.9)
    found.looked({"used_memory": used * MB, "maxmemory": limit})
    return found


@pytest.mark.parametrize(
    ("found", "asked_mb", "taken"),
    [
        (Memory(0.9), [1e9], [True]),
        (memory(10**6, 0), [1e9], [True]),  # no limit
        (memory(900), [1], [False]),
        (memory(5000), [1], [False]),
        (memory(899), [1], [True]),
        (memory(5, 40 * MB), [15.1, 15], [False, True]),  # a small one keeps room for buffers
        (memory(100), [801, 800], [False, True]),  # one large job may take all of it
        (memory(100), [100] * 5, [True] * 4 + [False]),  # several the half
    ],
)
def test_what_is_accepted_below_the_mark(
    found: Memory, asked_mb: list[float], taken: list[bool]
) -> None:
    assert [found.take(each * MB) for each in asked_mb] == taken


def test_after_an_eighth_of_the_room_the_server_is_looked_at_again() -> None:
    found = memory(100)
    assert found.take(99 * MB)
    assert not found.is_outdated
    assert found.take(1 * MB)
    assert found.is_outdated
    assert memory(900).is_outdated  # so that it is known soon when there is room again
    assert not Memory(0.9).is_outdated


def test_what_was_accepted_counts_until_the_second_look() -> None:
    found = memory(100)
    assert found.take(300 * MB)
    found.looked({"used_memory": 100 * MB, "maxmemory": LIMIT})  # it is not there yet
    assert not found.take(200 * MB)
    assert found.take(100 * MB)
    for used in (400, 500):
        found.looked({"used_memory": used * MB, "maxmemory": LIMIT})
    assert found.take(400 * MB)
    used_mb, gateways = 0, [memory(0) for _ in range(8)]
    for _ in range(200):
        for each in gateways:
            while not each.is_outdated and each.take(5 * MB):
                used_mb += 5
        for each in gateways:
            each.looked({"used_memory": used_mb * MB, "maxmemory": LIMIT})
    assert 850 <= used_mb <= 900 + 8 * 5  # one job each, as it is seen behind it
