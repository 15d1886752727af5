"""The store's errors for those of redis-py, of the operating system, and for error replies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from redis.exceptions import AskError, ClusterDownError, RedisError, ResponseError, TryAgainError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from shared.store.interface import (
    StoreError,
    StoreRefused,
    StoreTimeout,
    StoreUnavailable,
    StoreUnwritable,
)

_UNWRITABLE = ("OOM", "MISCONF", "READONLY", "LOADING", "NOREPLICAS", "MASTERDOWN")
_SLOT_CODES = frozenset({"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "UNBLOCKED"})
_SLOT_ERRORS = (AskError, TryAgainError, ClusterDownError)  # MovedError is an AskError
_NO_FUNCTION = "Function not found"
_CLOSED = "the handler is closed"
"""In the error of uvloop for a write to a closed connection; asyncio raises an OSError."""


class ScriptsMissing(StoreUnavailable):
    """Redis lacks the script or function of a call, so nothing was carried out.

    A StoreUnavailable, as callers repeat a call after a lost connection anyway.
    """


class SlotUnavailable(StoreUnavailable):
    """The server does not serve the key's slot now: nothing was carried out."""


class OnReplica(StoreUnwritable):
    """The server is a replica."""


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """Raise the store's errors for those of redis-py and of the operating system."""
    try:
        yield
    except (RedisError, OSError) as error:
        raise store_error(error) from error
    except RuntimeError as error:
        if _CLOSED not in str(error):
            raise
        raise StoreUnavailable(f"Connection to Redis lost: {error}") from error


def store_error(error: Exception) -> StoreError:
    """The store's error for one of redis-py or of the operating system."""
    if isinstance(error, _SLOT_ERRORS):
        return SlotUnavailable(f"{error.status_code} {error}")
    if isinstance(error, ResponseError):
        # redis-py takes the code off the reply.
        return refused(f"{error.status_code} {error}" if error.status_code else str(error))
    if isinstance(error, RedisTimeoutError):
        return StoreTimeout(str(error))
    kind = StoreUnavailable if isinstance(error, RedisConnectionError | OSError) else StoreError
    return kind(str(error))


def refused(reply: str) -> StoreError:
    """The error for an error reply."""
    code, _, message = reply.partition(" ")
    if code == "NOSCRIPT" or message == _NO_FUNCTION:
        return ScriptsMissing(reply)
    if code == "READONLY":
        return OnReplica(reply)
    if code in _SLOT_CODES:
        return SlotUnavailable(reply)
    if code in _UNWRITABLE:
        return StoreUnwritable(reply)
    return StoreRefused(reply)
