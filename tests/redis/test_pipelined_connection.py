"""The line: calls in flight together, losses told to those who wait, and a new connection after."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvloop
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

from shared.platform.pipelined_connection import PipelinedConnection
from shared.platform.redis_client import RedisConnectionError, connect
from shared.platform.redis_client import RedisTimeoutError as TimedOut
from tests.redis_server import free_port
from tests.waiting import eventually, wait_for

TIMEOUT_S = 5.0
STORM_ROUNDS = 40 * int(os.environ.get("FAULT_ROUNDS", "5"))


@contextlib.asynccontextmanager
async def opened(url: str, timeout_s: float = TIMEOUT_S) -> AsyncIterator[PipelinedConnection]:
    redis = connect(url)
    line = PipelinedConnection(redis, timeout_s)
    try:
        yield line
    finally:
        await line.close()
        await redis.aclose()


@pytest.fixture
async def line(redis_url: str) -> AsyncIterator[PipelinedConnection]:
    async with opened(redis_url) as line:
        yield line


def clients(store: Redis) -> set[str]:
    return {each["id"] for each in store.client_list()} - {str(store.client_id())}


async def test_calls_are_in_flight_together_and_get_their_own_replies(
    line: PipelinedConnection, store: Redis
) -> None:
    others = clients(store)
    replies = await asyncio.gather(*(line.call("ECHO", str(n)) for n in range(1000)))
    assert replies == [str(n).encode() for n in range(1000)]
    assert len(clients(store) - others) == 1


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
async def test_any_bytes_go_and_come(line: PipelinedConnection, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + b"\r\n" * (size % 2)
    assert await line.call("SET", "any", data) == b"OK"
    assert await line.call("GET", "any") == data


async def test_an_error_is_its_callers_alone(line: PipelinedConnection) -> None:
    first, wrong, last = await asyncio.gather(
        line.call("PING"), line.call("INCR"), line.call("PING"), return_exceptions=True
    )
    assert first == last == b"PONG"
    assert isinstance(wrong, ResponseError)


@pytest.mark.parametrize("command", [("EVALSHA", "0" * 40, 0), ("FCALL", "none", 0)])
async def test_an_unknown_script_is_told_by_its_own_error(
    line: PipelinedConnection, store: Redis, command: tuple[str, str, int]
) -> None:
    if command[0] == "FCALL" and store.info("server")["redis_version"] < "7":
        pytest.skip("Redis 7 brought functions")
    with pytest.raises(NoScriptError):
        await line.call(*command)


async def test_who_waits_hears_of_a_lost_connection_and_the_next_call_connects_anew(
    line: PipelinedConnection, store: Redis
) -> None:
    before = clients(store)
    await line.call("PING")
    (mine,) = clients(store) - before
    blocked = asyncio.create_task(line.call("BLPOP", "never", 0))
    await asyncio.sleep(0)
    store.client_kill_filter(_id=mine)
    with pytest.raises(RedisConnectionError):
        await blocked
    assert line.lost.is_set()
    assert await line.call("PING") == b"PONG"
    assert not line.lost.is_set()


async def test_a_caller_that_has_gone_does_not_shift_the_replies(line: PipelinedConnection) -> None:
    await line.call("PING")
    gone = asyncio.create_task(line.call("ECHO", "gone"))
    await asyncio.sleep(0)
    gone.cancel()
    assert await line.call("ECHO", "here") == b"here"


async def test_a_redis_that_does_not_answer_is_given_up(redis_url: str, store: Redis) -> None:
    async with opened(redis_url, timeout_s=0.05) as line:
        await line.call("PING")
        with pytest.raises(TimedOut):
            await line.call("BLPOP", "never", 0)
        assert await line.call("PING") == b"PONG"


async def test_nobody_there_is_a_connection_error() -> None:
    async with opened(f"redis://127.0.0.1:{free_port()}/0") as line:
        with pytest.raises(RedisConnectionError):
            await line.call("PING")


async def test_a_replica_is_left(line: PipelinedConnection, store: Redis) -> None:
    await line.call("PING")
    store.replicaof("127.0.0.1", free_port())
    try:
        with pytest.raises(ReadOnlyError):
            await line.call("SET", "a", "b")
        assert line.lost.is_set()
    finally:
        store.replicaof("NO", "ONE")
    assert await line.call("SET", "a", "b") == b"OK"


async def test_user_password_and_database_are_the_urls(redis_url: str, store: Redis) -> None:
    store.acl_setuser(
        "somebody", enabled=True, passwords=["+secret"], categories=["+@all"], keys=["*"]
    )
    url = redis_url.replace("//", "//somebody:secret@")
    try:
        async with opened(url.removesuffix("/0") + "/3") as line:
            assert await line.call("ACL", "WHOAMI") == b"somebody"
            await line.call("SET", "where", "three")
        assert store.get("where") is None
        async with opened(url.replace("secret", "wrong")) as line:
            with pytest.raises(RedisConnectionError):
                await line.call("PING")
    finally:
        store.acl_deluser("somebody")


@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_subscription_is_heard_and_still_answers(
    redis_url: str, store: Redis, protocol: int
) -> None:
    heard: list[bytes] = []
    redis = connect(f"{redis_url}?protocol={protocol}")
    line = PipelinedConnection(redis, TIMEOUT_S, heard.append)
    try:
        await line.call("SUBSCRIBE", "news")
        sent = [b"%d" % n for n in range(100)]
        for data in sent:
            store.publish("news", data)

        async def all_heard() -> bool:
            await line.call("PING")
            return heard == sent

        await eventually(all_heard, "all is heard, in order")
    finally:
        await line.close()
        await redis.aclose()


# --- on the product's own loop, and on any other ---

RUNNERS = [asyncio.run, uvloop.run]


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_line_that_was_cut_while_nobody_used_it_is_found_out(
    runner: Callable[..., None], redis_url: str, store: Redis
) -> None:
    async def run() -> None:
        async with opened(redis_url) as line:
            others = clients(store)
            for n in range(3):
                assert await line.call("PING") == b"PONG"
                cut(store, clients(store) - others)
                await until(line.lost.is_set, "the loss is heard of")
                assert line.losses == n + 1

    runner(run())


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_reply_that_came_before_the_cut_is_told(
    runner: Callable[..., None], redis_url: str, store: Redis
) -> None:
    async def run() -> None:
        async with opened(redis_url) as line:
            others = clients(store)
            await line.call("PING")
            reply = line.send("SET", "a", 1)
            # The loop stands still meanwhile, so it reads the reply and the end together.
            wait_for(lambda: store.get("a") == b"1", "Redis has the command")
            cut(store, clients(store) - others)
            assert await reply == b"OK"
            await until(line.lost.is_set, "the loss is heard of")
            assert await line.call("PING") == b"PONG"

    runner(run())


@pytest.mark.parametrize("runner", RUNNERS)
def test_an_ended_connection_tells_the_next_one_nothing(
    runner: Callable[..., None], redis_url: str
) -> None:
    async def run() -> None:
        async with opened(redis_url) as line:
            await line.call("PING")
            old: Any = line._transport
            line._break(RedisConnectionError("closed"))
            # A layer of its own (TLS) may deliver something yet.
            assert old.get_protocol() is not line
            assert await line.call("ECHO", "new") == b"new"
            assert line.losses == 1

    runner(run())


async def test_a_reply_that_nobody_waits_for_ends_the_connection(line: PipelinedConnection) -> None:
    await line.call("PING")
    line.data_received(b"+OK\r\n")
    assert line.lost.is_set()
    assert await line.call("ECHO", "mine") == b"mine"


@pytest.mark.parametrize("runner", RUNNERS)
def test_any_order_of_calls_and_losses(
    runner: Callable[..., None], redis_url: str, store: Redis
) -> None:
    draw = random.Random(7)
    others = clients(store)
    cuts = answered = 0

    async def some_calls(line: PipelinedConnection) -> None:
        nonlocal cuts, answered
        await line.connect()
        calls = []
        for _ in range(draw.randrange(1, 4)):
            data = b"x" * draw.choice([1, 100, 300_000])
            calls.append((data, line.send("ECHO", data)))
            for _ in range(draw.randrange(3)):
                await asyncio.sleep(0)
        if draw.random() < 0.1:
            cuts += 1
            cut(store, clients(store) - others)
        async with asyncio.timeout(TIMEOUT_S):
            replies = await asyncio.gather(*(reply for _, reply in calls), return_exceptions=True)
        for (data, _), reply in zip(calls, replies, strict=True):
            assert reply == data or isinstance(reply, RedisConnectionError)
            answered += reply == data

    async def run() -> None:
        async with opened(redis_url) as line:
            for _ in range(400):
                with contextlib.suppress(RedisConnectionError):  # of the cut before
                    await some_calls(line)
            assert 0 < line.losses <= cuts
            assert answered > 400

    runner(run())


@pytest.mark.parametrize("runner", RUNNERS)
def test_no_tenant_gets_another_ones_value_whoever_is_cancelled(
    runner: Callable[..., None], redis_url: str, store: Redis
) -> None:
    """Calls through the line and through redis-py's pool, cancelled at any moment; connections are
    cut, and Redis is slow at times."""
    draw = random.Random(11)
    others = clients(store)
    answered = cancelled = 0

    async def ask(line: PipelinedConnection, pool: AsyncRedis, tag: str) -> None:
        nonlocal answered, cancelled
        value = f"{tag}-".encode() + b"x" * draw.choice([0, 100, 100_000])
        key = f"value-of-{tag}"
        try:
            if draw.random() < 0.5:
                assert await line.call("ECHO", value) == value
                assert await line.call("SET", key, value) == b"OK"
                assert await line.call("GET", key) == value
            else:
                assert await pool.echo(value) == value
                assert await pool.set(key, value)
                assert await pool.get(key) == value
            answered += 1
        except asyncio.CancelledError:
            cancelled += 1
            raise

    async def run() -> None:
        async with opened(redis_url) as line, opened_pool(redis_url) as pool:
            for n in range(STORM_ROUNDS):
                tasks = [
                    asyncio.create_task(ask(line, pool, f"{tenant}-{n}-{m}"))
                    for tenant in ("ann", "bob", "cec")
                    for m in range(5)
                ]
                if n % 50 == 20:
                    store.client_pause(20)
                for _ in range(draw.randrange(12)):
                    await asyncio.sleep(draw.choice([0, 0, 0.0002]))
                    draw.choice(tasks).cancel()
                if n % 50 == 40:
                    cut(store, clients(store) - others)
                async with asyncio.timeout(30):
                    for told in await asyncio.gather(*tasks, return_exceptions=True):
                        lost = isinstance(told, RedisConnectionError) and n % 50 >= 40
                        assert told is None or lost or isinstance(told, asyncio.CancelledError)

    runner(run())
    assert answered > STORM_ROUNDS
    assert cancelled > STORM_ROUNDS


@contextlib.asynccontextmanager
async def opened_pool(url: str) -> AsyncIterator[AsyncRedis]:
    redis = connect(url, max_connections=8)
    try:
        yield redis
    finally:
        await redis.aclose()


def cut(store: Redis, connections: set[str]) -> None:
    for connection in connections:
        store.client_kill_filter(_id=connection)


async def until(condition: Callable[[], bool], what: str) -> None:
    async def met() -> bool:
        return condition()

    await eventually(met, what)
