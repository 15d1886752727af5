"""Two versions of the format do not share a Redis."""

from __future__ import annotations

import asyncio

import pytest
from redis import Redis

from shared.platform.redis_client import RedisError, connect
from shared.platform.settings import SettingsError
from shared.protocol import keys, version
from shared.protocol.version import (
    FORMAT_VERSION,
    FormatMismatch,
    FormatMonitor,
    refuse_other_format,
)
from shared.queue.job_queue import JobQueue
from tests.redis.conftest import submit
from tests.redis_server import free_port

SHARDS = 4


async def test_an_empty_database_is_marked(redis_url: str, store: Redis) -> None:
    await refuse_other_format([redis_url, redis_url], SHARDS)
    assert store.get(keys.FORMAT) == str(FORMAT_VERSION).encode()
    await refuse_other_format([redis_url], SHARDS)


@pytest.mark.parametrize("first", [FORMAT_VERSION, FORMAT_VERSION + 1])
async def test_the_second_of_two_versions_is_refused(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    second = FORMAT_VERSION if first != FORMAT_VERSION else FORMAT_VERSION + 1
    monkeypatch.setattr(version, "FORMAT_VERSION", first)
    await refuse_other_format([redis_url], SHARDS)
    monkeypatch.setattr(version, "FORMAT_VERSION", second)
    with pytest.raises(SettingsError, match=f"of format {first}, this release needs {second}: "):
        await refuse_other_format([redis_url], SHARDS)
    monkeypatch.setattr(version, "FORMAT_VERSION", first)
    await refuse_other_format([redis_url], SHARDS)


@pytest.mark.parametrize("key", keys.unversioned(SHARDS))
async def test_data_without_a_version_counts_as_the_first(
    redis_url: str, store: Redis, key: str
) -> None:
    store.set(key, "of an older release")
    with pytest.raises(FormatMismatch, match=r"of format 1, .*FLOTILLA_REDIS_URL"):
        await refuse_other_format([redis_url], SHARDS)
    assert not store.exists(keys.FORMAT)


@pytest.mark.parametrize("value", [b"", b"two", b"\xff", b"-2"])
async def test_a_version_that_is_no_number_is_refused(
    redis_url: str, store: Redis, value: bytes
) -> None:
    store.set(keys.FORMAT, value)
    with pytest.raises(FormatMismatch, match="of format unknown"):
        await refuse_other_format([redis_url], SHARDS)


async def test_a_version_of_the_wrong_type_is_refused(redis_url: str, store: Redis) -> None:
    store.rpush(keys.FORMAT, "2")
    with pytest.raises(FormatMismatch, match="of format unknown"):
        await refuse_other_format([redis_url], SHARDS)


async def test_the_second_of_several_servers_is_checked(redis_url: str, store: Redis) -> None:
    store.set(keys.FORMAT, "1")
    with pytest.raises(FormatMismatch):
        await refuse_other_format([f"redis://127.0.0.1:{free_port()}/0", redis_url], SHARDS)


async def test_a_server_that_is_away_is_checked_as_soon_as_it_is_back(
    redis_url: str, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "_FIRST_CHECK_S", 0.01)
    await refuse_other_format([f"redis://127.0.0.1:{free_port()}/0", "nonsense"], SHARDS)
    redis = connect(redis_url)
    get, calls = redis.get, list[str]()

    async def away(name: str) -> object:
        calls.append(name)
        if len(calls) < 3:
            raise RedisError("away")
        return await get(name)

    monkeypatch.setattr(redis, "get", away)
    store.set(keys.FORMAT, "1")
    monitor = FormatMonitor([redis, redis], SHARDS)
    async with asyncio.timeout(10):
        with pytest.raises(FormatMismatch):
            await monitor.run()
    assert "of format 1" in monitor.problem
    assert monitor.mismatch == monitor.problem
    await redis.aclose()


async def test_after_flushall_the_running_fleet_marks_its_data_again(
    redis_url: str, queue: JobQueue, store: Redis
) -> None:
    redis = connect(redis_url)
    monitor = FormatMonitor([redis], SHARDS)
    assert await monitor.check()
    store.flushall()
    await submit(queue)
    assert await monitor.check()
    assert store.get(keys.FORMAT) == str(FORMAT_VERSION).encode()
    await redis.aclose()


async def test_a_process_of_an_older_release_that_comes_later_is_reported(
    redis_url: str, store: Redis
) -> None:
    redis = connect(redis_url)
    monitor = FormatMonitor([redis], SHARDS)
    await monitor.check()
    store.set(keys.unversioned(SHARDS)[-1], "its reaper's clock")
    await monitor.check()
    assert "older release" in monitor.problem
    await monitor.check()  # it has been stopped
    assert (monitor.problem, monitor.mismatch) == ("", "")
    await redis.aclose()
