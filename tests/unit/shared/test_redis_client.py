"""Which of Redis' refusals mean: not now."""

from __future__ import annotations

import pytest

from shared.platform.redis_client import OutOfMemoryError, ResponseError, unwritable

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
def test_what_may_go_through_later(error: ResponseError) -> None:
    assert unwritable(error)


@pytest.mark.parametrize("text", ["ERR unknown command", "WRONGTYPE", "no OOM here", "NOSCRIPT"])
def test_what_will_never_go_through(text: str) -> None:
    assert not unwritable(ResponseError(text))
