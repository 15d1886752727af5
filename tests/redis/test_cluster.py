"""Connections to the masters of a cluster while slots move and masters change."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from shared.store.interface import StoreTimeout, StoreUnavailable
from shared.store.redis import cluster as module
from shared.store.redis.cluster import SlotMap, once_served, parse_slots
from shared.store.redis.pipelined_connection import PipelinedConnection
from shared.store.redis.redis_client import TIMEOUT_S, connect_slot, server_name, slot_map
from shared.store.redis.store_errors import SlotUnavailable
from tests.harness.servers import RedisCluster, begun_move, call, finish_move, free_port, move_slot
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
async def opened(url: str) -> AsyncIterator[tuple[SlotMap, Any]]:
    slots = slot_map(url)
    redis = connect_slot(slots, TAG)
    try:
        yield slots, redis
    finally:
        await redis.aclose(close_connection_pool=True)


@contextlib.asynccontextmanager
async def pipelined(redis: Any, **options: Any) -> AsyncIterator[PipelinedConnection]:
    connection = PipelinedConnection(redis, TIMEOUT_S, **options)
    try:
        yield connection
    finally:
        await connection.close()


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
    slots = slot_map(pair.url)
    clients = [connect_slot(slots, tag) for tag in (TAG, OTHER)]
    for redis, tag in zip(clients, (TAG, OTHER), strict=True):
        await redis.set(f"{{{tag}}}:found", tag)
        assert server_name(redis) == f"{slots.name} {{{tag}}}"
    nodes = {pair.master_of(key_slot(tag.encode())).port for tag in (TAG, OTHER)}
    assert len(nodes) == 2, "the tags show nothing if one node has both"
    for redis in clients:
        await redis.aclose(close_connection_pool=True)


async def test_a_connection_that_is_made_during_the_close_is_closed(pair: RedisCluster) -> None:
    redis = connect_slot(slot_map(pair.url), TAG)
    await redis.ping()
    pool = redis.connection_pool
    taken = await pool.get_connection()  # the next call makes another
    call = asyncio.create_task(redis.ping())
    for _ in range(2):
        await asyncio.sleep(0)
    assert len(pool._made) == 2
    await redis.aclose(close_connection_pool=True)
    with pytest.raises(StoreUnavailable, match="are closed"):
        await call
    with pytest.raises(StoreUnavailable, match="are closed"):
        await redis.ping()
    assert not any(each.is_connected for each in pool._made)
    await pool.release(taken)


async def test_it_closes_although_the_reader_of_the_map_loses_a_cancellation(
    pair: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As redis-py's `wait_for` does on Python 3.11."""
    lost: list[asyncio.CancelledError] = []

    async def run(self: SlotMap) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as error:
                lost.append(error)
                if len(lost) == 2:
                    raise

    monkeypatch.setattr(SlotMap, "_run", run)
    async with asyncio.timeout(30):
        async with opened(pair.url) as (_, redis):
            await redis.ping()
            await asyncio.sleep(0)
    assert len(lost) == 2


async def test_all_connections_of_a_slot_move_with_it(pair: RedisCluster) -> None:
    """Subscriptions and blocked pops, too, and nothing is left at the node before."""
    source = pair.master_of(SLOT)
    (target,) = [node for node in pair.masters if node is not source]
    messages: list[bytes] = []
    async with (
        opened(pair.url) as (_, redis),
        pipelined(redis) as popping,
        pipelined(redis, on_message=messages.append) as subscribed,
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
    async with opened(pair.url) as (_, redis), pipelined(redis) as connection:
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

            assert redis.connection_pool.is_served
            assert await once_served(write) == b"OK"
            assert not redis.connection_pool.is_served  # new jobs go to other shards
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
    async with opened(replicated.url) as (_, redis), pipelined(redis) as connection:
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
        async with opened(cluster.url) as (_, redis):
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
        async with opened(cluster.url.replace("//", "//:right@")) as (_, redis):
            await redis.set(KEY, "1")
        async with opened(cluster.url.replace("//", "//:secret@")) as (_, redis):
            with pytest.raises(StoreUnavailable) as caught:
                await redis.get(KEY)
        assert "password" in str(caught.value)
        assert "secret" not in str(caught.value)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Of 127.0.0.1, with its key beside it."""
    certificate, key = tmp_path / "node.crt", tmp_path / "node.key"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=node -keyout {key} "
        f"-out {certificate} -addext subjectAltName=IP:127.0.0.1".split(),
        check=True,
        capture_output=True,
    )
    return certificate


async def test_with_tls_each_connection_is_checked(tmp_path: Path, certificate: Path) -> None:
    port = free_port()
    options = {
        "tls-port": str(port),
        "tls-cert-file": str(certificate),
        "tls-key-file": str(certificate.with_suffix(".key")),
        "tls-ca-cert-file": str(certificate),
        "tls-auth-clients": "no",
        "tls-cluster": "yes",  # nodes tell TLS clients the ports of TLS
    }
    with contextlib.closing(RedisCluster(tmp_path / "cluster", 1, options=options)) as cluster:
        cluster.start()
        url = f"rediss+cluster://127.0.0.1:{port}"
        async with opened(f"{url}?ssl_ca_certs={certificate}") as (slots, redis):

            async def is_set() -> bool:  # a handshake may take longer than its limit of a second
                with contextlib.suppress(StoreUnavailable):
                    return bool(await redis.set(KEY, "value"))
                return False

            await eventually(is_set, "the node answers")
            assert await redis.get(KEY) == b"value"
            assert slots.known_address(SLOT) == ("127.0.0.1", port)
        async with opened(url) as (_, redis):
            with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
                await redis.get(KEY)
