"""Servers: where the shards of a cluster lie and how their slots are followed; scripts on servers
that are full, have lost them, or allow less."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.crc import key_slot

from shared.platform import redis_url
from shared.store import connection as connections
from shared.store import keys
from shared.store import servers as module
from shared.store.connection import Client, Server, SlotUnavailable
from shared.store.errors import StoreError, StoreTimeout, StoreUnavailable
from shared.store.queue import Queue, Step
from shared.store.servers import Masters, Servers, once_served, parse_slots, shard_tags
from tests.harness.servers import (
    RedisCluster,
    RedisServer,
    begun_move,
    call,
    finish_move,
    fleet_on_one_node,
)
from tests.store.conftest import TENANT, Case, beat, make_job, open_case

TAG = "some"
SLOT = key_slot(TAG.encode())
OTHER = "b"
"""A tag whose slot another node has."""

# --- a cluster ---


@pytest.mark.parametrize("nodes", [2, 3, 4, 6])
@pytest.mark.parametrize("shards", [1, 2, 3, 6, 12, 4096])
def test_shards_lie_evenly(shards: int, nodes: int) -> None:
    tags = shard_tags(shards)
    assert len(set(tags)) == shards
    found = [0] * nodes
    for tag in tags:
        found[key_slot(tag.encode()) * nodes // 16384] += 1
    assert sum(found) == shards
    assert max(found) - min(found) <= 1


def test_the_tags_stay_as_they_are() -> None:
    """Jobs lie under these names."""
    assert shard_tags(1) == ["1"]
    assert shard_tags(3) == ["3", "12", "0"]
    assert shard_tags(12) == ["18", "7", "50", "19", "33", "51", "106", "5", "49", "107", "4", "48"]


async def test_a_script_that_touches_another_slot_is_refused(tmp_path: Path) -> None:
    """So the tests that run on such a cluster prove that no script does."""
    cluster = fleet_on_one_node(tmp_path)
    with contextlib.closing(cluster):
        cluster.start()
        async with Servers(cluster.url, 3) as servers:
            for command in ("SET", "SPUBLISH"):
                script = f"return redis.call('{command}', 'elsewhere', 1)"
                with pytest.raises(StoreError, match="non local key"):
                    await servers.of(0).eval(script, 1, keys.base(0))


async def test_all_keys_of_a_shard_have_its_tag(case: Case) -> None:
    tag = keys.base(0).split("}")[0] + "}"
    await case.submit(deadline_s=9.0, prefixes=b"12345678", keep_s=1.0, body=b"x" * 70_000)
    await case.worker().claim()
    await case.queue.tick(0)
    names = [name.decode() for name in case.server.scan_iter("*")]
    assert all(name.startswith(tag) for name in names)
    assert case.base not in names


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Two masters."""
    cluster = RedisCluster(tmp_path_factory.mktemp("pair"), 2, node_timeout_ms=60_000)
    with contextlib.closing(cluster):
        cluster.start()
        yield cluster


@contextlib.asynccontextmanager
async def opened(url: str, tag: str = TAG) -> AsyncIterator[Client]:
    redis = Client(Server(redis_url.parse(url), Masters(redis_url.parse(url)), tag))
    try:
        yield redis
    finally:
        await redis.aclose()


async def test_each_client_finds_the_master_of_its_slot(pair: RedisCluster) -> None:
    nodes = {pair.master_of(key_slot(tag.encode())).port for tag in (TAG, OTHER)}
    assert len(nodes) == 2, "the tags show nothing if one node has both"
    for tag in (TAG, OTHER):
        async with opened(pair.url, tag) as redis:
            await redis.set(f"{{{tag}}}:found", tag)
            assert redis.name.endswith(f" {{{tag}}}")
    async with opened(pair.url) as redis:
        ping = asyncio.create_task(redis.ping())
        for _ in range(2):
            await asyncio.sleep(0)  # it connects
        await redis.aclose()
        for each in (ping, redis.ping()):
            with pytest.raises(StoreUnavailable, match="closed"):
                await each
        assert not redis.server.links
    master = [b"10.0.0.1", 7000, b"id", []]
    reply = [[0, 9, master, [b"10.0.0.2", 7000, b"id", []]], [10, 16383, [None, 7001, b"id", []]]]
    found = parse_slots(reply, ("asked", 1))
    assert found == [(0, 9, ("10.0.0.1", 7000)), (10, 16383, ("asked", 7001))]


async def test_a_slot_that_is_being_moved_is_waited_for(
    pair: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ASK is not followed: the key would be made where the others of its shard are not."""
    monkeypatch.setattr(connections, "_REFUSED_S", 600.0)
    source = pair.master_of(SLOT)
    (target,) = [node for node in pair.masters if node is not source]
    async with opened(pair.url) as redis:
        connection = redis.calls
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


# --- full ---


@pytest.fixture
async def full(one: RedisServer) -> AsyncIterator[Case]:
    """A case on one server, which may be filled."""
    async with open_case(one) as case:
        yield case
        case.server.config_set("maxmemory", 0)


async def test_jobs_of_a_full_redis_go_on_and_end(full: Case) -> None:
    jobs = [await full.submit(deadline_s=9.0) for _ in range(5)]
    worker, gateway = full.worker(), full.gateway("gw-2")
    done, cancelled, given_back = await worker.claim(3)
    full.server.config_set("maxmemory", 1)
    lost = (await worker.claim(1))[0]
    await full.queue.watch(done.id, "gw-2", follow=True)
    emitted = await worker.write(done, lost, text="x" * 10_000)
    assert (emitted.refused, set(emitted.followers)) == ({}, {done.id})
    await worker.end(done)
    assert [frame[2] for frame in gateway.frames()] == ["completed"]
    await full.queue.cancel(TENANT, cancelled.id)
    await full.queue.give_back([given_back], "handed_over", "drain")
    await beat(full, seconds=2.5)
    await beat(full, seconds=7)
    states = [await full.state(job) for job in jobs]
    assert states == ["completed", "cancelled", "expired", "expired", "expired"]


# --- the scripts ---


def calls(server: Redis, command: str) -> int:
    """How often the command was called since the last reset of the statistics."""
    stats = server.info("commandstats").get(f"cmdstat_{command}", {})
    return int(stats.get("calls", 0))


async def whole_life(queue: Queue) -> None:
    """A job from its submission to its end."""
    try:
        await queue.submit(0, [make_job()], 100)
    except StoreUnavailable:  # the scripts are lost; the next call loads them
        await queue.submit(0, [make_job()], 100)
    jobs = await queue.claim(0, "pool", "w-1", room=1, known=0, most=1)
    assert jobs
    await queue.emit(0, "w-1", b"", Step())
    assert await queue.give_back(jobs, "handed_over", "drain")
    await queue.cancel(TENANT, jobs[0].id)


async def test_scripts_that_redis_has_lost_are_loaded_again(alone: Case) -> None:
    await whole_life(alone.queue)
    alone.server.config_resetstat()
    alone.server.function_flush()
    with pytest.raises(StoreUnavailable):
        await alone.queue.emit(0, "w-1", b"", Step())  # never connects, and loads nothing
    await alone.queue.connect(0)
    await alone.queue.emit(0, "w-1", b"", Step())
    alone.server.function_flush()
    await whole_life(alone.queue)
    assert calls(alone.server, "evalsha") == 0
    await alone.submit()
    alone.server.config_set("maxmemory", 1)
    alone.server.function_flush()
    assert await alone.queue.claim(0, "pool", "w-1", room=1, known=0, most=1)
    assert calls(alone.server, "evalsha"), "no function can be loaded into a full Redis"


async def test_an_emit_neither_connects_nor_is_repeated(alone: Case) -> None:
    worker, held = await alone.begin()
    alone.queue.give_up(0, "a test")
    losses = alone.queue.losses(0)
    with pytest.raises(StoreUnavailable):
        await worker.write(held)
    assert alone.queue.losses(0) == losses
    worker.numbers[held.id] = held.number
    await alone.queue.connect(0)
    assert not (await worker.write(held, again=True)).refused
