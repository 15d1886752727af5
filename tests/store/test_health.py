"""Redis servers that can't be used: refused at a start, found later; and their memory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from math import inf

import pytest
from redis import Redis

from shared.job.errors import QuotaExceeded
from shared.job.rules import Quotas
from shared.platform.settings import SettingsError
from shared.platform.tasks import end
from shared.store import health, keys
from shared.store.health import (
    FORMAT_VERSION,
    FormatMismatch,
    Health,
    refuse_unfit,
    write_problems,
)
from shared.store.queue import Queue
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
async def queue(own_redis: RedisServer) -> AsyncIterator[Queue]:
    async with open_case(own_redis, own_clock=False) as case:
        yield case.queue


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
    assert client.get(keys.fleet("format")) == str(FORMAT_VERSION).encode()
    away = f"redis://127.0.0.1:{free_port()}/0"
    await refuse_unfit(Settings(redis_url=away, durable=True))
    client.acl_setuser("default", enabled=True, nopass=True, commands=["-config", "-info"])
    await refuse_unfit(Settings(redis_url=own_redis.url, durable=True))
    assert "can't be read" in caplog.text
    for value in (b"", b"two", b"\xff", b"-2"):
        client.set(keys.fleet("format"), value)
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
    assert call(node, "GET", keys.fleet("shards")) == b"3"
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
        assert found == {keys.fleet("probe"), *(keys.base(n) + "probe" for n in range(3))}
        assert call(cluster.masters[1], "DBSIZE") == 0


# --- while a process runs ---


async def test_a_server_that_evicts_is_found_and_logged_once(
    client: Redis, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flotilla.redis")
    client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + MB)
    looked = Health(queue)
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
    own_redis: RedisServer, client: Redis, queue: Queue
) -> None:
    client.set(keys.fleet("format"), "1")
    client.close()
    own_redis.stop()
    looked = Health(queue)
    running = asyncio.create_task(looked.run())
    await asyncio.sleep(0.05)
    own_redis.start()
    async with asyncio.timeout(60):
        with pytest.raises(FormatMismatch):
            await running
    assert "of format 1" in looked.format


async def test_a_tenant_may_keep_a_quarter_where_others_keep_data(
    client: Redis, queue: Queue
) -> None:
    async def submitted(tenant: str, n_bytes: int) -> bool:
        await Health(queue, 0.9).look()
        job = make_job(tenant=tenant, body=b"x" * n_bytes)
        (reply,) = queue.parse_submit([job], await queue.submit(0, [job], 100))
        if isinstance(reply, QuotaExceeded):
            assert "FLOTILLA_MAX_KEPT_BYTES" in str(reply)
            return False
        return True

    client.config_set("maxmemory", 100 * MB)
    assert await submitted("a", 15 * MB)
    assert await submitted("a", 15 * MB)  # it is alone
    assert await submitted("b", 10)
    assert not await submitted("a", 10)
    assert await submitted("b", 15 * MB)
    assert not await submitted("b", 15 * MB)
    queue.quotas = Quotas(kept_bytes=MB)
    assert not await submitted("c", MB)
    assert await submitted("c", 10)


async def test_the_room_up_to_the_mark_is_what_redis_has_left(client: Redis, queue: Queue) -> None:
    client.config_set("maxmemory", 120 * MB)
    await Health(queue, 0.9).look()
    (room,) = queue.rooms
    used = int(client.info("memory")["used_memory"])
    assert 100 * MB - used - MB < room.most < 100 * MB
    assert 90 * MB - used - MB < room.mark < 90 * MB


async def test_what_is_kept_has_its_room_already(client: Redis, queue: Queue) -> None:
    """However much of the memory is in use, the ledger says how much of it was accepted."""
    client.config_set("maxmemory", 120 * MB)
    looked = Health(queue, 0.9)
    await looked.look()
    before = queue.rooms[0].most
    for _ in range(20):
        job = make_job(body=b"x" * 400_000)
        queue.parse_submit([job], await queue.submit(0, [job], 100))
    await looked.look()
    assert before * 0.98 < queue.rooms[0].most < before * 1.05


async def test_the_memory_is_looked_at_all_the_time(client: Redis, queue: Queue) -> None:
    running = asyncio.create_task(Health(queue, 0.9).run())

    client.config_set("maxmemory", 100 * MB)
    await eventually(lambda: queue.rooms[0].most < inf, "there is a limit")
    client.config_set("maxmemory", 0)
    await eventually(lambda: queue.rooms[0].most == inf, "there is no limit")
    await end([running])
