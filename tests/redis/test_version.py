"""Two versions of the format do not share a Redis."""

from __future__ import annotations

import asyncio
import importlib.util
from types import ModuleType
from typing import Any

import pytest
from redis import Redis

from shared.platform.settings import SettingsError
from shared.store.interface import StoreError
from shared.store.redis import format_version as version
from shared.store.redis import keys
from shared.store.redis.format_version import (
    FORMAT_VERSION,
    FormatMismatch,
    FormatMonitor,
    check_format,
)
from shared.store.redis.redis_client import connect
from shared.store.redis.servers import Servers
from tests.harness.servers import free_port

SHARDS = 4
OTHER_VERSION = FORMAT_VERSION + 1


def other_release() -> ModuleType:
    """A second copy of the module, of another format version."""
    spec = importlib.util.find_spec("shared.store.redis.format_version")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.FORMAT_VERSION = OTHER_VERSION
    return module


class LateSet:
    """A client whose SET waits at a barrier for that of the other client."""

    def __init__(self, redis: Any, barrier: asyncio.Barrier) -> None:
        self._redis = redis
        self._barrier = barrier

    def __getattr__(self, name: str) -> Any:
        return getattr(self._redis, name)

    async def set(self, *arguments: Any, **options: Any) -> Any:
        await self._barrier.wait()
        return await self._redis.set(*arguments, **options)


async def check(url: str) -> bool:
    """`check_format` over a connection of its own."""
    async with Servers(url, SHARDS) as servers:
        return await check_format(servers.primary, SHARDS)


async def test_an_empty_database_is_marked(redis_url: str, store: Redis) -> None:
    await check(redis_url)
    assert store.get(keys.FORMAT) == str(FORMAT_VERSION).encode()
    await check(redis_url)


@pytest.mark.parametrize("attempt", range(5))
async def test_of_two_versions_that_start_at_once_on_an_empty_redis_one_wins(
    redis_url: str, store: Redis, attempt: int
) -> None:
    barrier = asyncio.Barrier(2)
    versions: dict[int, Any] = {FORMAT_VERSION: version, OTHER_VERSION: other_release()}
    clients = {number: connect(redis_url) for number in versions}
    async with asyncio.timeout(60):
        results = await asyncio.gather(
            *(
                module.check_format(LateSet(clients[number], barrier), 1)
                for number, module in versions.items()
            ),
            return_exceptions=True,
        )
    raw = store.get(keys.FORMAT)
    assert isinstance(raw, bytes)
    winner = int(raw)
    outcomes = dict(zip(versions, results, strict=True))
    assert outcomes.pop(winner) is True
    [(loser, refusal)] = outcomes.items()
    assert isinstance(refusal, SettingsError)
    assert f"of format {winner}, this release needs {loser}: " in str(refusal)
    for redis in clients.values():
        await redis.aclose()


@pytest.mark.parametrize("value", [b"", b"two", b"\xff", b"-2"])
async def test_a_version_that_is_another_one_is_refused(
    redis_url: str, store: Redis, value: bytes
) -> None:
    store.set(keys.FORMAT, value)
    with pytest.raises(FormatMismatch, match="of format "):
        await check(redis_url)


async def test_a_server_that_is_away_is_checked_as_soon_as_it_is_back(
    redis_url: str, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "_UNCHECKED_INTERVAL_S", 0.01)
    assert not await check(f"redis://127.0.0.1:{free_port()}/0")
    redis = connect(redis_url)
    get, calls = redis.get, list[str]()

    async def away(name: str) -> object:
        calls.append(name)
        if len(calls) < 3:
            raise StoreError("away")
        return await get(name)

    monkeypatch.setattr(redis, "get", away)
    store.set(keys.FORMAT, "1")
    monitor = FormatMonitor(redis, SHARDS)
    async with asyncio.timeout(60):
        with pytest.raises(FormatMismatch):
            await monitor.run()
    assert "of format 1" in monitor.problem
    await redis.aclose()
