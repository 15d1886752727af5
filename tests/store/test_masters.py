"""Connections to the masters of a cluster while slots move and masters change."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from shared.platform import redis_url
from shared.store import servers as module
from shared.store.connection import Client, Connection, SlotUnavailable
from shared.store.errors import StoreTimeout, StoreUnavailable
from shared.store.servers import Master, Masters, connect, once_served, parse_slots
from tests.harness.servers import (
    RedisCluster,
    SentinelGroup,
    begun_move,
    call,
    finish_move,
    free_port,
    move_slot,
)
from tests.harness.waiting import eventually

TAG = "some"
SLOT = key_slot(TAG.encode())
KEY = f"{{{TAG}}}:key"
OTHER = "b"
"""A tag whose slot another node has."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Two masters."""
    cluster = RedisCluster(tmp_path_factory.mktemp("pair"), 2, node_timeout_ms=60_000)
    cluster.start()
    yield cluster
    cluster.close()


@pytest.fixture
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Three masters with a replica each."""
    cluster = RedisCluster(tmp_path_factory.mktemp("replicated"), 3, replicas=True)
    with contextlib.closing(cluster):
        cluster.start()
        yield cluster


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Client]:
    redis = Client(Master(Masters(redis_url.parse(url)), TAG))
    try:
        yield redis
    finally:
        await redis.aclose()


@contextlib.asynccontextmanager
async def connected(redis: Client, **options: Any) -> AsyncIterator[Connection]:
    connection = Connection(redis.server, **options)
    try:
        yield connection
    finally:
        connection.close()


async def holds_value(redis: Any) -> bool:
    """Whether the value can be read; a call may meet a connection that is just being ended."""
    with contextlib.suppress(StoreUnavailable):
        return bool(await redis.get(KEY) == b"value")
    return False


def test_the_ranges_of_a_reply() -> None:
    master = [b"10.0.0.1", 7000, b"id", []]
    reply = [[0, 9, master, [b"10.0.0.2", 7000, b"id", []]], [10, 16383, [None, 7001, b"id", []]]]
    assert parse_slots(reply, ("asked", 1)) == [
        (0, 9, ("10.0.0.1", 7000)),
        (10, 16383, ("asked", 7001)),
    ]


async def test_each_client_finds_the_master_of_its_slot(pair: RedisCluster) -> None:
    masters = Masters(redis_url.parse(pair.url))
    clients = [Client(Master(masters, tag)) for tag in (TAG, OTHER)]
    for redis, tag in zip(clients, (TAG, OTHER), strict=True):
        await redis.set(f"{{{tag}}}:found", tag)
        assert redis.name == f"{masters.url.name} {{{tag}}}"
    nodes = {pair.master_of(key_slot(tag.encode())).port for tag in (TAG, OTHER)}
    assert len(nodes) == 2, "the tags show nothing if one node has both"
    for redis in clients:
        await redis.aclose()


async def test_a_connection_that_is_made_during_the_close_is_closed(pair: RedisCluster) -> None:
    redis = Client(Master(Masters(redis_url.parse(pair.url)), TAG))
    call = asyncio.create_task(redis.ping())
    for _ in range(2):
        await asyncio.sleep(0)
    await redis.aclose()
    for each in (call, redis.ping()):
        with pytest.raises(StoreUnavailable, match="closed"):
            await each
    assert not redis.server.links
    await asyncio.sleep(0)  # the event loop closes the socket


async def test_all_connections_of_a_slot_move_with_it(pair: RedisCluster) -> None:
    """Subscriptions and blocked pops, too, and nothing is left at the node before."""
    source = pair.master_of(SLOT)
    (target,) = [node for node in pair.masters if node is not source]
    messages: list[bytes] = []
    async with (
        opened(pair.url) as redis,
        connected(redis) as popping,
        connected(redis, on_message=messages.append) as subscribed,
    ):
        await redis.set(KEY, "value")
        await subscribed.call("SSUBSCRIBE", f"{{{TAG}}}:channel")
        await popping.connect()
        popped = popping.send("BLPOP", f"{{{TAG}}}:list", 0)
        move_slot(SLOT, source, target)
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(popped, 10)
        await asyncio.wait_for(subscribed.lost.wait(), 10)
        await eventually(lambda: holds_value(redis), "the value is at its new place")
        await once_served(lambda: subscribed.call("SSUBSCRIBE", f"{{{TAG}}}:channel"))
        call(target, "SPUBLISH", f"{{{TAG}}}:channel", "here")

        async def come() -> bool:
            return messages == [b"here"]

        await eventually(come, "the message has come")


async def test_a_slot_that_is_being_moved_is_waited_for(
    pair: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ASK is not followed: the key would be made where the others of its shard are not."""
    monkeypatch.setattr(module, "_REFUSED_S", 600.0)
    source = pair.master_of(SLOT)
    (target,) = [node for node in pair.masters if node is not source]
    async with opened(pair.url) as redis, connected(redis) as connection:
        await connection.connect()
        with begun_move(SLOT, source, target):
            refusals: list[str] = []

            async def write() -> Any:
                try:
                    return await connection.call("SET", f"{{{TAG}}}:new", "1")
                except SlotUnavailable as error:
                    refusals.append(str(error)[:4])
                    if len(refusals) == 3:
                        finish_move(SLOT, source, target)
                    raise
                except StoreUnavailable as error:
                    assert len(refusals) >= 3
                    # The map showed the move while this call was in flight.
                    raise SlotUnavailable("its connection was ended") from error

            assert redis.server.is_served
            assert await once_served(write) == b"OK"
            assert not redis.server.is_served  # new jobs go to other shards
    assert refusals[:3] == ["ASK "] * 3
    assert call(target, "GET", f"{{{TAG}}}:new") == b"1"


async def test_a_slot_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOT_WAIT_S", 0.1)

    async def refused() -> None:
        raise SlotUnavailable("CLUSTERDOWN The cluster is down")

    with pytest.raises(StoreTimeout, match="CLUSTERDOWN"):
        await once_served(refused)


@pytest.mark.parametrize("how", ["failover", "kill", "stop"])
async def test_a_successor_of_the_master_is_found(replicated: RedisCluster, how: str) -> None:
    master = replicated.master_of(SLOT)
    async with opened(replicated.url) as redis, connected(redis) as connection:
        assert await connection.call("SET", KEY, "value") == b"OK"
        call(master, "WAIT", 1, 5000)
        blocked = connection.send("BLPOP", f"{{{TAG}}}:list", 0)
        if how == "failover":
            replicated.fail_over(SLOT)
        elif how == "kill":
            master.kill()
        else:
            master.signal(signal.SIGSTOP)
        replicated.wait_for_master(SLOT, master)
        with pytest.raises(StoreUnavailable):  # at once: a stopped master would hold it for ever
            await asyncio.wait_for(blocked, 3)
        await eventually(lambda: holds_value(redis), "the successor answers")


async def test_without_any_node_a_call_fails_and_later_ones_do_not(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    cluster = RedisCluster(tmp_path_factory.mktemp("single"), 1)
    with contextlib.closing(cluster):
        cluster.start()
        async with opened(cluster.url) as redis:
            await redis.set(KEY, "value")
            cluster.masters[0].stop(kill=True)
            with pytest.raises(StoreUnavailable):
                await redis.get(KEY)
            cluster.masters[0].start()
            await eventually(lambda: holds_value(redis), "the node answers again")


async def test_a_wrong_password_is_told_without_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    cluster = RedisCluster(tmp_path_factory.mktemp("locked"), 1)
    with contextlib.closing(cluster):
        cluster.start()
        call(cluster.masters[0], "CONFIG SET", "requirepass", "right")
        async with opened(cluster.url.replace("//", "//:right@")) as redis:
            await redis.set(KEY, "1")
        async with opened(cluster.url.replace("//", "//:secret@")) as redis:
            with pytest.raises(StoreUnavailable) as caught:
                await redis.get(KEY)
        assert "password" in str(caught.value)
        assert "secret" not in str(caught.value)


async def test_with_tls_each_connection_is_checked(
    tmp_path_factory: pytest.TempPathFactory, certificate: Path
) -> None:
    port = free_port()
    options = {
        "tls-port": str(port),
        "tls-cert-file": str(certificate),
        "tls-key-file": str(certificate.with_suffix(".key")),
        "tls-ca-cert-file": str(certificate),
        "tls-auth-clients": "no",
        "tls-cluster": "yes",  # nodes tell TLS clients the ports of TLS
    }
    cluster = RedisCluster(tmp_path_factory.mktemp("secure"), 1, options=options)
    with contextlib.closing(cluster):
        cluster.start()
        url = f"rediss+cluster://127.0.0.1:{port}"
        async with opened(f"{url}?ssl_ca_certs={certificate}") as redis:

            async def is_set() -> bool:  # a handshake may take longer than its limit of a second
                with contextlib.suppress(StoreUnavailable):
                    return bool(await redis.set(KEY, "value"))
                return False

            await eventually(is_set, "the node answers")
            assert await redis.get(KEY) == b"value"
            assert [link.address for link in redis.server.links] == [("127.0.0.1", port)]
        async with opened(url) as redis:
            with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
                await redis.get(KEY)


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_the_master_that_sentinels_name_is_found(
    tmp_path_factory: pytest.TempPathFactory, how: str
) -> None:
    group = SentinelGroup(tmp_path_factory.mktemp("sentinels"))
    with contextlib.closing(group):
        group.start()
        master = group.servers[0]
        redis = connect(group.url)
        async with connected(redis) as connection, connected(redis) as subscribed:
            assert await redis.set(KEY, "value")
            assert await connection.call("GET", KEY) == b"value"
            await subscribed.call("SUBSCRIBE", "channel")
            call(master, "WAIT", 1, 5000)
            blocked = connection.send("BLPOP", "never", 0)
            if how == "kill":
                master.kill()
            else:
                master.signal(signal.SIGSTOP)
            with pytest.raises(StoreUnavailable):
                await asyncio.wait_for(blocked, 30)
            await eventually(lambda: holds_value(redis), "the successor answers", 60)
            await asyncio.wait_for(subscribed.lost.wait(), 10)
            assert await connection.call("GET", KEY) == b"value"
        await redis.aclose()
        master.kill()
