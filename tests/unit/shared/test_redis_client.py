"""Names of servers, and the store's errors for those of Redis."""

from __future__ import annotations

from importlib import metadata

import pytest
from redis.exceptions import ConnectionError as LostError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as LateError

from shared.store.interface import (
    StoreError,
    StoreRefused,
    StoreTimeout,
    StoreUnavailable,
    StoreUnwritable,
)
from shared.store.redis.redis_client import connect, server_name
from shared.store.redis.store_errors import (
    OnReplica,
    ScriptsMissing,
    refused,
    store_error,
)
from tests.harness.servers import free_port


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", StoreUnwritable),
        ("MISCONF Redis is configured to save RDB snapshots", StoreUnwritable),
        ("LOADING Redis is loading the dataset in memory", StoreUnwritable),
        ("READONLY You can't write against a read only replica.", OnReplica),
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


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (LostError("lost"), StoreUnavailable),
        (LateError("late"), StoreTimeout),
        (OSError("no route"), StoreUnavailable),
        (RedisError("odd"), StoreError),
        (OutOfMemoryError("command not allowed", status_code="OOM"), StoreUnwritable),
        (ReadOnlyError("a replica", status_code="READONLY"), OnReplica),
        (ResponseError("MISCONF disk"), StoreUnwritable),
        (ResponseError("WRONGTYPE Operation"), StoreRefused),
    ],
)
def test_the_error_for_one_of_redis_py(error: Exception, kind: type[StoreError]) -> None:
    assert type(store_error(error)) is kind


async def test_a_client_raises_the_stores_errors() -> None:
    client = connect(f"redis://127.0.0.1:{free_port()}/0")
    pipeline = client.pipeline(transaction=False)
    pipeline.ping()
    for call in (client.ping(), pipeline.execute()):
        with pytest.raises(StoreUnavailable):
            await call
    await client.aclose()


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
def test_a_new_connection_reads_nothing_from_the_disk(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a server is away, connections are made again and again."""
    pool = connect(f"{scheme}://127.0.0.1:{free_port()}").connection_pool

    def read(name: str) -> str:
        raise AssertionError(f"the metadata of {name} was read")

    monkeypatch.setattr(metadata, "version", read)
    assert pool.make_connection() is not pool.make_connection()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://10.0.0.5:6380/2", "10.0.0.5:6380/2"),
        ("redis://user:s3cret@10.0.0.5", "10.0.0.5:6379/0"),
        ("rediss://:s3cret@redis.example:6379/0", "redis.example:6379/0"),
        ("unix:///run/redis.sock?db=1", "/run/redis.sock/1"),
    ],
)
def test_a_server_is_named_without_its_password(url: str, expected: str) -> None:
    assert server_name(connect(url)) == expected
