"""Names of servers, and which errors of Redis are temporary."""

from __future__ import annotations

import pytest

from shared.store.redis.redis_client import (
    OutOfMemoryError,
    ResponseError,
    connect,
    server_name,
    unwritable,
)

OLD = "Error running script (call to f_0): @user_script:112: -OOM command not allowed when used"


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
        ResponseError("MISCONF Redis is configured to save RDB snapshots"),
        ResponseError("LOADING Redis is loading the dataset in memory"),
        ResponseError(OLD),
    ],
)
def test_errors_that_may_pass(error: ResponseError) -> None:
    assert unwritable(error)


@pytest.mark.parametrize("text", ["ERR unknown command", "WRONGTYPE", "no OOM here", "NOSCRIPT"])
def test_errors_that_never_pass(text: str) -> None:
    assert not unwritable(ResponseError(text))


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
