"""PipelinedConnection: calls in flight together, losses reported to their callers, reconnection."""

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

from shared.store.interface import StoreRefused, StoreTimeout, StoreUnavailable
from shared.store.redis.pipelined_connection import PipelinedConnection
from shared.store.redis.redis_client import connect
from shared.store.redis.store_errors import OnReplica, ScriptsMissing
from tests.harness.servers import free_port, one_redis_only
from tests.harness.waiting import eventually, wait_for

pytestmark = one_redis_only  # its keys lie in any slot

TIMEOUT_S = 5.0
STORM_ROUNDS = 40 * int(os.environ.get("FAULT_ROUNDS", "5"))


@contextlib.asynccontextmanager
async def opened(url: str, timeout_s: float = TIMEOUT_S) -> AsyncIterator[PipelinedConnection]:
    redis = connect(url)
    connection = PipelinedConnection(redis, timeout_s)
    try:
        yield connection
    finally:
        await connection.close()
        await redis.aclose()


@pytest.fixture
async def connection(redis_url: str) -> AsyncIterator[PipelinedConnection]:
    async with opened(redis_url) as connection:
        yield connection


def clients(store: Redis) -> set[str]:
    return {each["id"] for each in store.client_list()} - {str(store.client_id())}


async def test_calls_are_in_flight_together_and_get_their_own_replies(
    connection: PipelinedConnection, store: Redis
) -> None:
    others = clients(store)
    replies = await asyncio.gather(*(connection.call("ECHO", str(n)) for n in range(1000)))
    assert replies == [str(n).encode() for n in range(1000)]
    assert len(clients(store) - others) == 1


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
async def test_any_bytes_go_and_come(connection: PipelinedConnection, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + b"\r\n" * (size % 2)
    assert await connection.call("SET", "any", data) == b"OK"
    assert await connection.call("GET", "any") == data


async def test_callers_share_an_attempt_to_connect_that_fails() -> None:
    attempts = 0
    async with opened(f"redis://127.0.0.1:{free_port()}") as connection:
        pool: Any = connection._pool
        make = pool.make_connection

        def counted() -> Any:
            nonlocal attempts
            attempts += 1
            return make()

        pool.make_connection = counted
        replies = await asyncio.gather(
            *(connection.call("PING") for _ in range(100)), return_exceptions=True
        )
        assert {type(reply) for reply in replies} == {StoreUnavailable}
        assert len({id(reply) for reply in replies}) == 100
        assert attempts == 1

        async def tried_again() -> bool:
            with pytest.raises(StoreUnavailable):
                await connection.call("PING")
            return attempts == 2

        await eventually(tried_again, "another attempt")


async def test_an_error_reply_fails_only_its_own_call(connection: PipelinedConnection) -> None:
    first, wrong, last = await asyncio.gather(
        connection.call("PING"),
        connection.call("INCR"),
        connection.call("PING"),
        return_exceptions=True,
    )
    assert first == last == b"PONG"
    assert isinstance(wrong, StoreRefused)


@pytest.mark.parametrize("command", [("EVALSHA", "0" * 40, 0), ("FCALL", "none", 0)])
async def test_an_unknown_script_raises_no_script_error(
    connection: PipelinedConnection, store: Redis, command: tuple[str, str, int]
) -> None:
    with pytest.raises(ScriptsMissing):
        await connection.call(*command)


async def test_a_lost_connection_fails_the_calls_in_flight_and_the_next_call_reconnects(
    connection: PipelinedConnection, store: Redis
) -> None:
    before = clients(store)
    await connection.call("PING")
    (mine,) = clients(store) - before
    blocked = asyncio.create_task(connection.call("BLPOP", "never", 0))
    await asyncio.sleep(0)
    store.client_kill_filter(_id=mine)
    with pytest.raises(StoreUnavailable):
        await blocked
    assert connection.lost.is_set()
    assert await connection.call("PING") == b"PONG"
    assert not connection.lost.is_set()


async def test_a_connection_that_ended_unnoticed_is_lost_with_the_next_write(
    connection: PipelinedConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await connection.call("PING")

    def write(data: bytes) -> None:
        raise RuntimeError("unable to perform operation; the handler is closed")

    monkeypatch.setattr(connection._link, "write", write)
    reply = connection.send("PING")
    with pytest.raises(StoreUnavailable, match="the handler is closed"):
        await reply
    assert connection.lost.is_set()
    assert await connection.call("PING") == b"PONG"


async def test_a_cancelled_call_does_not_shift_the_replies(connection: PipelinedConnection) -> None:
    await connection.call("PING")
    gone = asyncio.create_task(connection.call("ECHO", "gone"))
    await asyncio.sleep(0)
    gone.cancel()
    assert await connection.call("ECHO", "here") == b"here"


async def test_a_redis_that_does_not_reply_raises_a_timeout_and_the_next_call_reconnects(
    redis_url: str, store: Redis
) -> None:
    async with opened(redis_url, timeout_s=0.05) as connection:
        await connection.call("PING")
        with pytest.raises(StoreTimeout):
            await connection.call("BLPOP", "never", 0)
        assert await connection.call("PING") == b"PONG"


async def test_no_server_is_a_connection_error() -> None:
    async with opened(f"redis://127.0.0.1:{free_port()}/0") as connection:
        with pytest.raises(StoreUnavailable):
            await connection.call("PING")


async def test_a_replica_is_disconnected(connection: PipelinedConnection, store: Redis) -> None:
    await connection.call("PING")
    store.replicaof("127.0.0.1", free_port())
    try:
        with pytest.raises(OnReplica):
            await connection.call("SET", "a", "b")
        assert connection.lost.is_set()
    finally:
        store.replicaof("NO", "ONE")
    assert await connection.call("SET", "a", "b") == b"OK"


async def test_user_password_and_database_come_from_the_url(redis_url: str, store: Redis) -> None:
    store.acl_setuser(
        "somebody", enabled=True, passwords=["+secret"], categories=["+@all"], keys=["*"]
    )
    url = redis_url.replace("//", "//somebody:secret@")
    try:
        async with opened(url.removesuffix("/0") + "/3") as connection:
            assert await connection.call("ACL", "WHOAMI") == b"somebody"
            await connection.call("SET", "where", "three")
        assert store.get("where") is None
        async with opened(url.replace("secret", "wrong")) as connection:
            with pytest.raises(StoreUnavailable):
                await connection.call("PING")
    finally:
        store.acl_deluser("somebody")


@pytest.mark.parametrize("protocol", [2, 3])
async def test_messages_arrive_in_order_between_replies(
    redis_url: str, store: Redis, protocol: int
) -> None:
    received: list[bytes] = []
    redis = connect(f"{redis_url}?protocol={protocol}")
    connection = PipelinedConnection(redis, TIMEOUT_S, received.append)
    try:
        await connection.call("SUBSCRIBE", "channel")
        sent = [b"%d" % n for n in range(100)]
        for data in sent:
            store.publish("channel", data)

        async def all_received() -> bool:
            await connection.call("PING")
            return received == sent

        await eventually(all_received, "all messages have arrived, in order")
    finally:
        await connection.close()
        await redis.aclose()


async def test_a_message_handler_that_fails_does_not_end_the_connection(
    redis_url: str, store: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[bytes] = []

    def handle(data: bytes) -> None:
        handled.append(data)
        raise ValueError("malformed")

    redis = connect(redis_url)
    connection = PipelinedConnection(redis, TIMEOUT_S, handle)
    try:
        await connection.call("SUBSCRIBE", "channel")
        for data in (b"1", b"2"):
            store.publish("channel", data)

        async def both_handled() -> bool:
            await connection.call("PING")
            return handled == [b"1", b"2"]

        await eventually(both_handled, "both messages have been handled")
        assert connection.losses == 0
    finally:
        await connection.close()
        await redis.aclose()


# --- on uvloop, which the product uses, and on asyncio's own loop ---

RUNNERS = [asyncio.run, uvloop.run]


@pytest.mark.parametrize("runner", RUNNERS)
def test_an_idle_connection_that_was_cut_is_noticed(
    runner: Callable[..., None], redis_url: str, store: Redis
) -> None:
    async def run() -> None:
        async with opened(redis_url) as connection:
            others = clients(store)
            for n in range(3):
                assert await connection.call("PING") == b"PONG"
                cut(store, clients(store) - others)
                await until(connection.lost.is_set, "the loss is noticed")
                assert connection.losses == n + 1

    runner(run())


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_reply_that_arrived_before_the_cut_is_delivered(
    runner: Callable[..., None], redis_url: str, store: Redis
) -> None:
    async def run() -> None:
        async with opened(redis_url) as connection:
            others = clients(store)
            await connection.call("PING")
            reply = connection.send("SET", "a", 1)
            # The loop is blocked meanwhile, so it reads the reply and the end together.
            wait_for(lambda: store.get("a") == b"1", "Redis has the command")
            cut(store, clients(store) - others)
            assert await reply == b"OK"
            await until(connection.lost.is_set, "the loss is noticed")
            assert await connection.call("PING") == b"PONG"

    runner(run())


@pytest.mark.parametrize("runner", RUNNERS)
def test_an_ended_connection_delivers_nothing_to_the_next_one(
    runner: Callable[..., None], redis_url: str
) -> None:
    async def run() -> None:
        async with opened(redis_url) as connection:
            await connection.call("PING")
            old: Any = connection._link
            connection._break(StoreUnavailable("closed"))
            # A layer of its own (TLS) may deliver something yet.
            assert old._transport.get_protocol() is not old
            assert await connection.call("ECHO", "new") == b"new"
            assert connection.losses == 1

    runner(run())


async def test_a_reply_that_no_call_waits_for_ends_the_connection(
    connection: PipelinedConnection,
) -> None:
    await connection.call("PING")
    connection._on_reply(b"OK")
    assert connection.lost.is_set()
    assert await connection.call("ECHO", "mine") == b"mine"


@pytest.mark.parametrize("runner", RUNNERS)
def test_any_order_of_calls_and_losses(
    runner: Callable[..., None], redis_url: str, store: Redis
) -> None:
    draw = random.Random(7)
    others = clients(store)
    cuts = answered = 0

    async def some_calls(connection: PipelinedConnection) -> None:
        nonlocal cuts, answered
        await connection.connect()
        calls = []
        for _ in range(draw.randrange(1, 4)):
            data = b"x" * draw.choice([1, 100, 300_000])
            calls.append((data, connection.send("ECHO", data)))
            for _ in range(draw.randrange(3)):
                await asyncio.sleep(0)
        if draw.random() < 0.1:
            cuts += 1
            cut(store, clients(store) - others)
        async with asyncio.timeout(TIMEOUT_S):
            replies = await asyncio.gather(*(reply for _, reply in calls), return_exceptions=True)
        for (data, _), reply in zip(calls, replies, strict=True):
            assert reply == data or isinstance(reply, StoreUnavailable)
            answered += reply == data

    async def run() -> None:
        async with opened(redis_url) as connection:
            for _ in range(400):
                # The previous cut may fail this call.
                with contextlib.suppress(StoreUnavailable):
                    await some_calls(connection)
            assert 0 < connection.losses <= cuts
            assert answered > 400

    runner(run())


@pytest.mark.parametrize("runner", RUNNERS)
def test_no_tenant_gets_a_value_of_another_whichever_call_is_cancelled(
    runner: Callable[..., None], redis_url: str, store: Redis
) -> None:
    """Calls on the connection and through redis-py's pool, cancelled at any moment; connections are
    cut, and Redis is slow at times."""
    draw = random.Random(11)
    others = clients(store)
    answered = cancelled = 0

    async def ask(connection: PipelinedConnection, pool: AsyncRedis, tag: str) -> None:
        nonlocal answered, cancelled
        value = f"{tag}-".encode() + b"x" * draw.choice([0, 100, 100_000])
        key = f"value-of-{tag}"
        try:
            if draw.random() < 0.5:
                assert await connection.call("ECHO", value) == value
                assert await connection.call("SET", key, value) == b"OK"
                assert await connection.call("GET", key) == value
            else:
                assert await pool.echo(value) == value
                assert await pool.set(key, value)
                assert await pool.get(key) == value
            answered += 1
        except asyncio.CancelledError:
            cancelled += 1
            raise

    async def run() -> None:
        async with opened(redis_url) as connection, opened_pool(redis_url) as pool:
            for n in range(STORM_ROUNDS):
                tasks = [
                    asyncio.create_task(ask(connection, pool, f"{tenant}-{n}-{m}"))
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
                    for ended in await asyncio.gather(*tasks, return_exceptions=True):
                        lost = isinstance(ended, StoreUnavailable) and n % 50 >= 40
                        assert ended is None or lost or isinstance(ended, asyncio.CancelledError)

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
