"""Connection: calls in flight together, losses reported to their callers, reconnection; and
redis-py's commands on it."""

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

from shared.store import connection as module
from shared.store.connection import Connection, OnReplica, ScriptsMissing, SlotUnavailable, refused
from shared.store.errors import StoreError, StoreRefused, StoreTimeout, StoreUnavailable
from shared.store.errors import StoreUnwritable as Unwritable
from shared.store.servers import connect
from tests.harness.servers import RedisServer, free_port, one_redis_only
from tests.harness.waiting import eventually, wait_for

pytestmark = one_redis_only  # its keys lie in any slot

STORM_ROUNDS = 200
RUNNERS = [asyncio.run, uvloop.run]  # the product uses uvloop
on_both_loops = pytest.mark.parametrize("run", RUNNERS)


@pytest.fixture
def store(redis_server: RedisServer, redis_url: str) -> Iterator[Redis]:
    with redis_server.client() as client:
        yield client


@contextlib.asynccontextmanager
async def opened(url: str, *options: Any) -> AsyncIterator[Connection]:
    connection = Connection(connect(url).server, *options)
    try:
        yield connection
    finally:
        connection.close()


@pytest.fixture
async def connection(redis_url: str) -> AsyncIterator[Connection]:
    async with opened(redis_url) as connection:
        yield connection


def clients(store: Redis) -> set[str]:
    return {each["id"] for each in store.client_list()} - {str(store.client_id())}


def cut(store: Redis, connections: set[str]) -> None:
    for connection in connections:
        store.client_kill_filter(_id=connection)


async def until(condition: Callable[[], bool], what: str) -> None:
    async def met() -> bool:
        return condition()

    await eventually(met, what)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", Unwritable),
        ("MISCONF Redis is configured to save RDB snapshots", Unwritable),
        ("LOADING Redis is loading the dataset in memory", Unwritable),
        ("READONLY You can't write against a read only replica.", OnReplica),
        ("MOVED 1 127.0.0.1:7000", SlotUnavailable),
        ("ERR unknown command", StoreRefused),
        ("WRONGTYPE Operation against a key", StoreRefused),
        ("ERR no OOM here", StoreRefused),
        ("NOSCRIPT No matching script", ScriptsMissing),
        ("ERR Function not found", ScriptsMissing),
    ],
)
def test_the_error_for_a_reply(reply: str, kind: type[StoreError]) -> None:
    assert type(refused(reply)) is kind
    assert str(refused(reply)) == reply


async def test_calls_are_in_flight_together_and_get_their_own_replies(
    connection: Connection, store: Redis
) -> None:
    others = clients(store)
    replies = await asyncio.gather(*(connection.call("ECHO", str(n)) for n in range(1000)))
    assert replies == [str(n).encode() for n in range(1000)]
    assert len(clients(store) - others) == 1


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
async def test_any_bytes_go_and_come(connection: Connection, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + b"\r\n" * (size % 2)
    assert await connection.call("SET", "any", data) == b"OK"
    assert await connection.call("GET", "any") == data


async def test_callers_share_an_attempt_to_connect_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts = 0
    async with opened(f"redis://127.0.0.1:{free_port()}") as connection:
        address = connection.server.address

        async def counted() -> Any:
            nonlocal attempts
            attempts += 1
            return await address()

        monkeypatch.setattr(connection.server, "address", counted)
        calls = (connection.call("PING") for _ in range(100))
        replies = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(reply) for reply in replies} == {StoreUnavailable}
        assert len({id(reply) for reply in replies}) == 100
        assert attempts == 1

        async def tried_again() -> bool:
            with pytest.raises(StoreUnavailable):
                await connection.call("PING")
            return attempts == 2

        await eventually(tried_again, "another attempt")


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


async def test_a_redis_that_does_not_reply_raises_a_timeout_and_the_next_call_reconnects(
    redis_url: str,
) -> None:
    async with opened(redis_url, 0.05) as connection:
        with pytest.raises(StoreTimeout):
            await connection.call("BLPOP", "never", 0)
        assert await connection.call("PING") == b"PONG"


async def test_a_replica_is_disconnected_and_what_was_connected_before_too(
    redis_url: str, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subscription at a replica would be missed by whoever asks the master for it."""
    redis = connect(redis_url)
    subscribed, connection = Connection(redis.server), Connection(redis.server)
    await subscribed.call("SUBSCRIBE", "channel")
    await connection.call("PING")
    store.replicaof("127.0.0.1", free_port())
    try:
        with pytest.raises(OnReplica):
            await connection.call("SET", "a", "b")
        assert connection.lost.is_set()
        assert not subscribed.lost.is_set(), "just connected: it may be to another server"
        monkeypatch.setattr(module, "_SETTLED_S", 0.0)
        with pytest.raises(OnReplica):
            await connection.call("SET", "a", "b")
        assert subscribed.lost.is_set()
    finally:
        store.replicaof("NO", "ONE")
    assert await connection.call("SET", "a", "b") == b"OK"
    for each in (connection, subscribed):
        each.close()


async def test_user_password_and_database_come_from_the_url(redis_url: str, store: Redis) -> None:
    store.acl_setuser(
        "somebody", enabled=True, passwords=["+secret"], categories=["+@all"], keys=["*"]
    )
    url = redis_url.replace("//", "//somebody:secret@").removesuffix("/0")
    try:
        async with opened(url + "/3") as connection:
            assert await connection.call("ACL", "WHOAMI") == b"somebody"
            await connection.call("SET", "where", "three")
        assert store.get("where") is None
        async with opened(url.replace("secret", "wrong")) as connection:
            with pytest.raises(StoreUnavailable, match="password") as caught:
                await connection.call("PING")
            assert "wrong" not in str(caught.value)
        async with opened(url + "/99") as connection:
            with pytest.raises(StoreRefused, match="DB index"):
                await connection.call("PING")
    finally:
        store.acl_deluser("somebody")


async def test_tls_checks_the_servers_certificate_and_shows_its_own(
    tmp_path: Path, certificate: Path
) -> None:
    port, key = free_port(), certificate.with_suffix(".key")
    server = RedisServer(
        tmp_path / "tls",
        tls_port=str(port),
        tls_cert_file=str(certificate),
        tls_key_file=str(key),
        tls_ca_cert_file=str(certificate),
    )
    server.start()
    own = f"ssl_certfile={certificate}&ssl_keyfile={key}"
    url = f"rediss://127.0.0.1:{port}?{own}"
    try:
        for options in (f"&ssl_ca_certs={certificate}", "&ssl_cert_reqs=none"):
            async with opened(url + options) as connection:
                assert await connection.call("PING") == b"PONG"
        wrong_name = url.replace("127.0.0.1", "localhost") + f"&ssl_ca_certs={certificate}"
        for refused_url in (url, wrong_name):
            async with opened(refused_url) as connection:
                with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
                    await connection.call("PING")
        async with opened(wrong_name + "&ssl_check_hostname=false") as connection:
            assert await connection.call("PING") == b"PONG"
        async with opened(url.split("?")[0] + f"?ssl_ca_certs={certificate}") as connection:
            with pytest.raises(StoreUnavailable):  # the server wants a certificate, too
                await connection.call("PING")
    finally:
        server.stop()


async def test_messages_arrive_in_order_and_a_handler_that_fails_ends_nothing(
    redis_url: str, store: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    received: list[bytes] = []

    def handle(data: bytes) -> None:
        received.append(data)
        if data == b"3":
            raise ValueError("malformed")

    async with opened(redis_url, 5.0, handle) as connection:
        await connection.call("SUBSCRIBE", "channel")
        sent = [b"%d" % n for n in range(100)]
        for data in sent:
            store.publish("channel", data)

        async def all_received() -> bool:
            await connection.call("PING")
            return received == sent

        await eventually(all_received, "all messages have arrived, in order")
        assert connection.losses == 0
    assert "could not be handled" in caplog.text


# --- losses ---


@on_both_loops
def test_a_lost_connection_fails_the_calls_in_flight_and_the_next_call_reconnects(
    run: Callable[..., None],
    redis_url: str,
    store: Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        others = clients(store)
        async with opened(redis_url) as connection:
            for n in range(3):
                await connection.call("PING")
                blocked = connection.send("BLPOP", "never", 0)
                connection.send("INCR")  # nobody awaits these
                connection.send("BLPOP", "never", 0)
                cut(store, clients(store) - others)
                with pytest.raises(StoreUnavailable):
                    await blocked
                assert connection.losses == n + 1
                assert connection.lost.is_set()
            assert await connection.call("PING") == b"PONG"
            assert not connection.lost.is_set()
            cut(store, clients(store) - others)
            await until(connection.lost.is_set, "the loss of an idle connection is noticed")
        with pytest.raises(StoreUnavailable, match="closed"):
            await connection.call("PING")

    run(main())
    gc.collect()
    assert "never retrieved" not in caplog.text


@on_both_loops
def test_a_reply_that_arrived_before_the_cut_is_delivered(
    run: Callable[..., None], redis_url: str, store: Redis
) -> None:
    async def main() -> None:
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

    run(main())


@on_both_loops
def test_a_write_to_a_connection_that_has_ended_fails_its_call(
    run: Callable[..., None], redis_url: str
) -> None:
    """The loop has closed the socket, and tells so later: uvloop refuses the write."""

    async def main() -> None:
        async with opened(redis_url) as connection:
            await connection.call("PING")
            link: Any = connection._link
            link._transport.abort()
            with pytest.raises(StoreUnavailable):
                await connection.send("PING")
            assert await connection.call("ECHO", "mine") == b"mine"
            link.data_received(b"+OK\r\n")  # a layer of its own (TLS) may deliver something yet
            assert await connection.call("ECHO", "mine") == b"mine"
            assert connection.losses == 1

    run(main())


async def test_a_reply_that_no_call_waits_for_ends_the_connection(connection: Connection) -> None:
    await connection.call("PING")
    link: Any = connection._link
    link.data_received(b"+OK\r\n")
    assert connection.lost.is_set()
    assert await connection.call("ECHO", "mine") == b"mine"


@on_both_loops
def test_any_order_of_calls_and_losses(
    run: Callable[..., None], redis_url: str, store: Redis
) -> None:
    draw = random.Random(7)
    others = clients(store)
    cuts = answered = 0

    async def some_calls(connection: Connection) -> None:
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
        async with asyncio.timeout(30):
            replies = await asyncio.gather(*(reply for _, reply in calls), return_exceptions=True)
        for (data, _), reply in zip(calls, replies, strict=True):
            assert reply == data or isinstance(reply, StoreUnavailable)
            answered += reply == data

    async def main() -> None:
        async with opened(redis_url) as connection:
            for _ in range(400):
                # The previous cut may fail this call.
                with contextlib.suppress(StoreUnavailable):
                    await some_calls(connection)
            assert 0 < connection.losses <= cuts
            assert answered > 400

    run(main())


@on_both_loops
def test_no_tenant_gets_a_value_of_another_whichever_call_is_cancelled(
    run: Callable[..., None], redis_url: str, store: Redis
) -> None:
    """Calls, commands and pipelines, cancelled at any moment; connections are cut, and Redis is
    slow at times."""
    draw = random.Random(11)
    others = clients(store)
    answered = cancelled = 0

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
        redis = connect(redis_url)
        async with opened(redis_url) as connection:
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
                if n % 50 == 40:
                    cut(store, clients(store) - others)
                async with asyncio.timeout(30):
                    for ended in await asyncio.gather(*tasks, return_exceptions=True):
                        lost = isinstance(ended, StoreUnavailable) and n % 50 >= 40
                        assert ended is None or lost or isinstance(ended, asyncio.CancelledError)
        await redis.aclose()

    run(main())
    assert answered > STORM_ROUNDS
    assert cancelled > STORM_ROUNDS


# --- redis-py's commands ---


@pytest.mark.parametrize("kind", ["url", "socket_url"])
async def test_commands_and_pipelines(redis_server: RedisServer, store: Redis, kind: str) -> None:
    redis = connect(getattr(redis_server, kind))
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


async def test_without_a_server_commands_raise_the_stores_errors() -> None:
    redis = connect(f"redis://:secret@127.0.0.1:{free_port()}/0")
    pipeline = redis.pipeline(transaction=False)
    pipeline.ping()
    for call in (redis.ping(), pipeline.execute(raise_on_error=False)):
        with pytest.raises(StoreUnavailable) as caught:
            await call
        assert "secret" not in str(caught.value)
    await redis.aclose()
