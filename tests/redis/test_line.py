"""The line: calls in flight together, losses told to those who wait, and a new connection after."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import select
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvloop
from redis import Redis
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

from shared.line import Line
from shared.redis import RedisConnectionError, connect
from shared.redis import RedisTimeoutError as TimedOut
from tests.redis_server import free_port
from tests.waiting import eventually

TIMEOUT_S = 5.0


@contextlib.asynccontextmanager
async def opened(url: str, timeout_s: float = TIMEOUT_S) -> AsyncIterator[Line]:
    redis = connect(url)
    line = Line(redis, timeout_s)
    try:
        yield line
    finally:
        await line.close()
        await redis.aclose()


@pytest.fixture
async def line(redis_url: str) -> AsyncIterator[Line]:
    async with opened(redis_url) as line:
        yield line


def clients(store: Redis) -> set[str]:
    return {each["id"] for each in store.client_list()} - {str(store.client_id())}


async def test_calls_are_in_flight_together_and_get_their_own_replies(
    line: Line, store: Redis
) -> None:
    others = clients(store)
    replies = await asyncio.gather(*(line.call("ECHO", str(n)) for n in range(1000)))
    assert replies == [str(n).encode() for n in range(1000)]
    assert len(clients(store) - others) == 1


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
async def test_any_bytes_go_and_come(line: Line, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + b"\r\n" * (size % 2)
    assert await line.call("SET", "any", data) == b"OK"
    assert await line.call("GET", "any") == data


async def test_an_error_is_its_callers_alone(line: Line) -> None:
    first, wrong, last = await asyncio.gather(
        line.call("PING"), line.call("INCR"), line.call("PING"), return_exceptions=True
    )
    assert first == last == b"PONG"
    assert isinstance(wrong, ResponseError)


@pytest.mark.parametrize("command", [("EVALSHA", "0" * 40, 0), ("FCALL", "none", 0)])
async def test_an_unknown_script_is_told_by_its_own_error(
    line: Line, store: Redis, command: tuple[str, str, int]
) -> None:
    if command[0] == "FCALL" and store.info("server")["redis_version"] < "7":
        pytest.skip("Redis 7 brought functions")
    with pytest.raises(NoScriptError):
        await line.call(*command)


async def test_who_waits_hears_of_a_lost_connection_and_the_next_call_connects_anew(
    line: Line, store: Redis
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


async def test_a_caller_that_has_gone_does_not_shift_the_replies(line: Line) -> None:
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


async def test_a_replica_is_left(line: Line, store: Redis) -> None:
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
    line = Line(redis, TIMEOUT_S, heard.append)
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


async def test_a_patient_caller_gets_the_reply_with_the_next_call(line: Line, store: Redis) -> None:
    await line.call("PING")
    patient = asyncio.create_task(line.call("SET", "a", "1", patience_s=60.0))

    async def carried_out() -> bool:
        return store.get("a") == b"1"

    await eventually(carried_out, "Redis has the command")
    for _ in range(20):
        await asyncio.sleep(0)
    assert not patient.done()
    assert await line.call("GET", "a") == b"1"
    assert await patient == b"OK"


async def test_a_patient_caller_gets_the_reply_when_told_and_in_time_at_the_latest(
    line: Line,
) -> None:
    await line.call("PING")
    patient = asyncio.create_task(line.call("PING", patience_s=60.0))
    await asyncio.sleep(0)
    line.read_on()
    assert await patient == b"PONG"
    assert await line.call("PING", patience_s=0.01) == b"PONG"


async def test_a_patient_caller_hears_of_a_lost_line(line: Line) -> None:
    await line.call("PING")
    patient = asyncio.create_task(line.call("BLPOP", "never", 0, patience_s=60.0))
    await asyncio.sleep(0)
    await line.close()
    with pytest.raises(RedisConnectionError):
        await patient
    assert await line.call("PING") == b"PONG"


# --- on the product's own loop, and on any other ---

RUNNERS = [asyncio.run, uvloop.run]


def test_a_reply_that_is_waited_for_patiently_wakes_nobody(redis_url: str, store: Redis) -> None:
    async def run() -> None:
        loop: Any = asyncio.get_running_loop()
        with select.epoll.fromfd(os.dup(loop._get_backend_id())) as epoll:
            async with opened(redis_url) as line:
                await line.call("PING")
                for n in range(3):
                    patient = line.send("SET", "a", n, patience_s=60.0)
                    await until(lambda n=n: store.get("a") == b"%d" % n, "Redis has the command")
                    assert epoll.poll(0.1) == []
                    line.read_on()
                    assert await patient == b"OK"

    uvloop.run(run())


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_line_that_was_cut_while_nobody_read_it_is_found_out(
    runner: Callable[..., None], redis_url: str, store: Redis
) -> None:
    async def run() -> None:
        async with opened(redis_url, timeout_s=1.0) as line:
            others = clients(store)
            await line.call("PING")
            patient = line.send("SET", "a", 1, patience_s=60.0)
            await until(lambda: store.get("a") == b"1", "Redis has the command")
            cut(store, clients(store) - others)
            line.read_on()
            assert await patient == b"OK"  # it had come before
            await until(line.lost.is_set, "the loss is heard of")
            assert await line.call("PING") == b"PONG"

    runner(run())


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_line_that_was_cut_while_it_rested_is_not_used(
    runner: Callable[..., None], redis_url: str, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.line._TRUST_S", -1.0)

    async def run() -> None:
        async with opened(redis_url) as line:
            others = clients(store)
            await line.call("PING")
            for n in range(3):
                patient = line.send("SET", "a", n, patience_s=60.0)
                await until(lambda n=n: store.get("a") == b"%d" % n, "Redis has the command")
                line.read_on()
                assert await patient == b"OK"
                cut(store, clients(store) - others)
                line.read_on()
                assert (line.lost.is_set(), line.losses) == (True, n + 1)
                assert await line.call("PING") == b"PONG"

    runner(run())


@pytest.mark.parametrize("runner", RUNNERS)
def test_any_order_of_patient_calls_others_and_losses(
    runner: Callable[..., None], redis_url: str, store: Redis
) -> None:
    draw = random.Random(7)
    others = clients(store)
    cuts = answered = 0

    async def some_calls(line: Line) -> None:
        nonlocal cuts, answered
        await line.connect()
        calls = []
        for _ in range(draw.randrange(1, 4)):
            data = b"x" * draw.choice([1, 100, 300_000])
            patience_s = draw.choice([0.0, 0.001, 60.0])
            calls.append((data, line.send("ECHO", data, patience_s=patience_s)))
            for _ in range(draw.randrange(3)):
                await asyncio.sleep(0)
        if draw.random() < 0.1:
            cuts += 1
            cut(store, clients(store) - others)
        line.read_on()
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


def cut(store: Redis, connections: set[str]) -> None:
    for connection in connections:
        store.client_kill_filter(_id=connection)


async def until(condition: Callable[[], bool], what: str) -> None:
    async def met() -> bool:
        return condition()

    await eventually(met, what)
