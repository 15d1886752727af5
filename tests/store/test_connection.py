"""The connection to Redis: calls in flight together, losses that are told to their callers; what
stands on it: redis-py's commands, subscriptions, reads that are repeated."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from redis import Redis

from shared.platform.tasks import end
from shared.store import answers, keys
from shared.store import connection as module
from shared.store.answers import read_again
from shared.store.connection import Connection, OnReplica, ScriptsMissing, SlotUnavailable, refused
from shared.store.errors import (
    StoreError,
    StoreRefused,
    StoreTimeout,
    StoreUnavailable,
    StoreUnwritable,
)
from shared.store.servers import Servers, connect
from shared.store.subscription import Subscription
from tests.harness.proxy import StallingProxy
from tests.harness.servers import RedisServer, free_port, one_redis_only
from tests.harness.waiting import eventually, wait_for

pytestmark = one_redis_only  # its keys lie in any slot

STORM_ROUNDS = 200
on_both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
"""The product uses uvloop."""


@pytest.fixture
def store(one: RedisServer) -> Iterator[Redis]:
    with one.client() as client:
        yield client


@contextlib.asynccontextmanager
async def opened(url: str, *options: Any) -> AsyncIterator[Connection]:
    connection = Connection(connect(url).server, *options)
    try:
        yield connection
    finally:
        connection.close()


@pytest.fixture
async def connection(one: RedisServer) -> AsyncIterator[Connection]:
    async with opened(one.url) as connection:
        yield connection


def clients(store: Redis) -> set[str]:
    return {each["id"] for each in store.client_list()} - {str(store.client_id())}


def cut(store: Redis, connections: set[str]) -> None:
    for connection in connections:
        store.client_kill_filter(_id=connection)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", StoreUnwritable),
        ("MISCONF Redis is configured to save RDB snapshots", StoreUnwritable),
        ("LOADING Redis is loading the dataset in memory", StoreUnwritable),
        ("READONLY You can't write against a read only replica.", OnReplica),
        ("MOVED 1 127.0.0.1:7000", SlotUnavailable),
        ("ERR unknown command", StoreRefused),
        ("ERR no OOM here", StoreRefused),
        ("NOSCRIPT No matching script", ScriptsMissing),
        ("ERR Function not found", ScriptsMissing),
    ],
)
def test_the_error_for_a_reply(reply: str, error: type[StoreError]) -> None:
    assert type(refused(reply)) is error
    assert str(refused(reply)) == reply


async def test_calls_are_in_flight_together_and_get_their_own_replies(
    connection: Connection, store: Redis
) -> None:
    others = clients(store)
    replies = await asyncio.gather(*(connection.call("ECHO", str(n)) for n in range(1000)))
    assert replies == [str(n).encode() for n in range(1000)]
    assert len(clients(store) - others) == 1
    for size in (0, 1, 70_000, 3_000_000):
        data = bytes(range(256)) * (size // 256) + b"\r\n" * (size % 2)
        assert await connection.call("ECHO", data) == data


async def test_what_fails_or_is_cancelled_does_not_shift_the_replies(
    connection: Connection,
) -> None:
    await connection.call("PING")
    gone = asyncio.create_task(connection.call("ECHO", "gone"))
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(TypeError):
        connection.send("SET", "a", None)  # type: ignore[arg-type]
    for command in (("EVALSHA", "0" * 40, 0), ("FCALL", "none", 0)):
        with pytest.raises(ScriptsMissing):
            await connection.call(*command)
    wrong, here = await asyncio.gather(
        connection.call("INCR"), connection.call("ECHO", "here"), return_exceptions=True
    )
    assert isinstance(wrong, StoreRefused)
    assert here == b"here"
    link: Any = connection._link
    link.data_received(b"+OK\r\n")  # no call waits for it
    assert connection.lost.is_set()
    assert await connection.call("ECHO", "mine") == b"mine"


async def test_a_redis_that_does_not_reply_raises_a_timeout_and_the_next_call_reconnects(
    one: RedisServer,
) -> None:
    async with opened(one.url, 0.05) as connection:
        with pytest.raises(StoreTimeout):
            await connection.call("BLPOP", "never", 0)
        assert await connection.call("PING") == b"PONG"


async def test_a_replica_is_disconnected_and_what_was_connected_before_too(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subscription at a replica would be missed by whoever asks the master for it."""
    redis = connect(own_redis.url)
    subscribed, connection = Connection(redis.server), Connection(redis.server)
    await subscribed.call("SUBSCRIBE", "channel")
    await connection.call("PING")
    with own_redis.client() as store:
        store.replicaof("127.0.0.1", free_port())
    for settled_s in (module._SETTLED_S, 0.0):
        monkeypatch.setattr(module, "_SETTLED_S", settled_s)
        with pytest.raises(OnReplica):
            await connection.call("SET", "a", "b")
        assert connection.lost.is_set()
        # Just connected it may be to another server.
        assert subscribed.lost.is_set() == (settled_s == 0)
    for each in (connection, subscribed):
        each.close()


async def test_the_database_comes_from_the_url(one: RedisServer, store: Redis) -> None:
    async with opened(f"redis://127.0.0.1:{one.port}/3") as connection:
        await connection.call("SET", "where", "three")
    assert store.get("where") is None


async def test_tls_checks_the_servers_certificate_and_shows_its_own(
    tmp_path: Path, certificate: Path
) -> None:
    port, key = free_port(), certificate.with_suffix(".key")
    server = RedisServer(
        tmp_path / "tls", tls_port=str(port), tls_cert_file=str(certificate),
        tls_key_file=str(key), tls_ca_cert_file=str(certificate),
    )  # fmt: skip
    server.start()
    trusted = f"&ssl_ca_certs={certificate}"
    own = f"?ssl_certfile={certificate}&ssl_keyfile={key}"
    try:
        for host, options, problem in (
            ("127.0.0.1", own + trusted, ""),
            ("127.0.0.1", own + "&ssl_cert_reqs=none", ""),
            ("127.0.0.1", own, "certificate"),
            ("localhost", own + trusted, "certificate"),
            ("localhost", own + trusted + "&ssl_check_hostname=false", ""),
            ("127.0.0.1", "?" + trusted[1:], "."),  # the server wants a certificate, too
        ):
            async with opened(f"rediss://{host}:{port}{options}") as connection:
                if problem:
                    with pytest.raises(StoreUnavailable, match=f"(?i){problem}"):
                        await connection.call("PING")
                else:
                    assert await connection.call("PING") == b"PONG"
    finally:
        server.stop()


async def test_messages_arrive_in_order_and_a_handler_that_fails_ends_nothing(
    one: RedisServer, store: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    received: list[bytes] = []

    def handle(data: bytes) -> None:
        received.append(data)
        if data == b"3":
            raise ValueError("malformed")

    async with opened(one.url, 5.0, handle) as connection:
        await connection.call("SUBSCRIBE", "channel")
        sent = [b"%d" % n for n in range(100)]
        for data in sent:
            store.publish("channel", data)
        await eventually(lambda: received == sent, "all messages have arrived, in order")
        assert connection.losses == 0
    assert "could not be handled" in caplog.text


# --- losses ---


@on_both_loops
def test_a_lost_connection_fails_the_calls_in_flight_and_the_next_call_reconnects(
    run: Callable[..., None], one: RedisServer, store: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        others = clients(store)
        async with opened(one.url) as connection:
            for n in range(3):
                await connection.call("PING")
                blocked = connection.send("BLPOP", "never", 0)
                connection.send("INCR")  # nobody awaits this
                cut(store, clients(store) - others)
                with pytest.raises(StoreUnavailable):
                    await blocked
                assert connection.losses == n + 1
                assert connection.lost.is_set()
            assert await connection.call("PING") == b"PONG"
            assert not connection.lost.is_set()
            # The loop is blocked meanwhile, so it reads the reply and the end together.
            reply = connection.send("SET", "a", 1)
            wait_for(lambda: store.get("a") == b"1", "Redis has the command")
            cut(store, clients(store) - others)
            assert await reply == b"OK"
            await eventually(connection.lost.is_set, "the loss of an idle connection is noticed")
            await connection.call("PING")
            link: Any = connection._link
            link._transport.abort()  # the loop tells so later: uvloop refuses the write
            with pytest.raises(StoreUnavailable):
                await connection.send("PING")
            assert await connection.call("ECHO", "mine") == b"mine"
            link.data_received(b"+OK\r\n")  # a layer of its own (TLS) may deliver something yet
            assert await connection.call("ECHO", "mine") == b"mine"
        with pytest.raises(StoreUnavailable, match="closed"):
            await connection.call("PING")

    run(main())
    gc.collect()
    assert "never retrieved" not in caplog.text


@on_both_loops
def test_no_tenant_gets_a_value_of_another_whichever_call_is_cancelled_or_lost(
    run: Callable[..., None], one: RedisServer, store: Redis
) -> None:
    """Calls, commands and pipelines, cancelled at any moment; connections are cut, and Redis is
    slow at times."""
    draw = random.Random(11)
    others = clients(store)
    answered = cancelled = lost = 0

    async def ask(connection: Connection, redis: Any, tag: str) -> None:
        nonlocal answered, cancelled
        value = f"{tag}-".encode() + b"x" * draw.choice([0, 100, 100_000])
        key, kind = f"value-of-{tag}", draw.randrange(3)
        try:
            if kind == 0:
                assert await connection.call("ECHO", value) == value
                assert await connection.call("SET", key, value) == b"OK"
                assert await connection.call("GET", key) == value
            elif kind == 1:
                assert await redis.echo(value) == value
                assert await redis.set(key, value)
                assert await redis.get(key) == value
            else:
                pipeline = redis.pipeline(transaction=draw.random() < 0.5)
                pipeline.set(key, value).get(key)
                assert await pipeline.execute() == [True, value]
            answered += 1
        except asyncio.CancelledError:
            cancelled += 1
            raise

    async def main() -> None:
        nonlocal lost
        redis = connect(one.url)
        async with opened(one.url) as connection:
            for n in range(STORM_ROUNDS):
                tasks = [
                    asyncio.create_task(ask(connection, redis, f"{tenant}-{n}-{m}"))
                    for tenant in ("ann", "bob", "cec")
                    for m in range(5)
                ]
                if n % 50 == 20:
                    store.client_pause(20)
                for _ in range(draw.randrange(12)):
                    await asyncio.sleep(draw.choice([0, 0, 0.0002]))
                    draw.choice(tasks).cancel()
                if n % 10 == 4:
                    cut(store, clients(store) - others)
                async with asyncio.timeout(30):
                    for ended in await asyncio.gather(*tasks, return_exceptions=True):
                        lost += isinstance(ended, StoreUnavailable)
                        # The next round may meet the end of a connection that was cut.
                        assert n % 10 in (4, 5) or not isinstance(ended, StoreUnavailable)
                        if not isinstance(ended, StoreUnavailable | asyncio.CancelledError):
                            assert ended is None
        await redis.aclose()

    run(main())
    assert min(answered, cancelled) > STORM_ROUNDS
    assert lost


# --- redis-py's commands ---


@pytest.mark.parametrize("url", ["url", "socket_url"])
async def test_commands_and_pipelines(one: RedisServer, url: str) -> None:
    redis = connect(getattr(one, url))
    try:
        assert await redis.set("a", 1, nx=True)
        assert not await redis.set("a", 2, nx=True)
        assert await redis.config_get("appendonly") == {"appendonly": "yes"}
        assert (await redis.info("server"))["redis_version"]
        assert [key async for key in redis.scan_iter("*")] == [b"a"]
        pipeline = redis.pipeline(transaction=False)
        pipeline.zadd("z", {"x": 1.5}).incr("z").zrange("z", 0, -1, withscores=True)
        assert len(pipeline) == 3
        added, wrong, found = await pipeline.execute(raise_on_error=False)
        assert (added, found) == (1, [(b"x", 1.5)])
        assert isinstance(wrong, StoreRefused)
        assert await pipeline.execute() == []
        together = redis.pipeline(transaction=True)
        together.hset("h", mapping={"b": 1}).incr("h")
        with pytest.raises(StoreRefused, match="WRONGTYPE"):
            await together.execute()
        together.incr("a").execute_command("SET", "h")
        with pytest.raises(StoreRefused, match="wrong number"):  # nothing of it is carried out
            await together.execute()
        assert await redis.get("a") == b"1"
    finally:
        await redis.aclose()


# --- subscriptions ---

WORKER = "w-1"
CHANNEL = keys.control_channel(WORKER)


@contextlib.asynccontextmanager
async def subscribed(url: str) -> AsyncIterator[tuple[Subscription, list[bytes], list[str]]]:
    """A subscription, its messages, and what happens to it."""
    messages: list[bytes] = []
    events: list[str] = []
    async with Servers(url) as servers:
        subscription = Subscription(
            servers, 0, CHANNEL, messages.append,
            *(lambda name=name: events.append(name) for name in ("connected", "lost", "silent")),
        )  # fmt: skip
        task = asyncio.create_task(subscription.run())
        try:
            await eventually(lambda: events == ["connected"], "it is subscribed")
            yield subscription, messages, events
        finally:
            await end([task])


async def test_a_subscription_that_falls_silent_is_replaced(one: RedisServer, store: Redis) -> None:
    async with (
        StallingProxy(one.port).running() as proxy,
        subscribed(proxy.url) as (subscription, messages, events),
    ):
        store.publish(CHANNEL, "one")
        await eventually(lambda: messages == [b"one"], "the first message arrives")
        proxy.stall()
        await eventually(lambda: "lost" in events, "the silence is noticed")
        assert not subscription.connected.is_set()
        proxy.resume()
        await eventually(subscription.connected.is_set, "it is subscribed again")
        assert events == ["connected", "silent", "lost", "connected"]
        store.publish(CHANNEL, "two")
        await eventually(lambda: b"two" in messages, "messages arrive again")


# --- reads that are repeated ---


async def test_a_read_is_repeated_no_longer_than_it_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "LONGEST_S", 0.2)

    async def read() -> None:
        raise StoreUnavailable("lost")

    with pytest.raises(StoreUnavailable):
        await read_again(read)
