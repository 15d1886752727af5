"""Checks that Redis keeps its data when it stops, and, for FLOTILLA_DURABLE, each write.

With `appendfsync everysec`, the default, Redis may lose about a second of writes that it has
acknowledged when its machine loses power, or when it is killed while the disk is busy. With
`always` it loses none, and writes fewer per second.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from shared.platform.settings import SettingsError
from shared.store.interface import StoreError, StoreRefused
from shared.store.redis.redis_client import server_name

log = logging.getLogger("flotilla.redis")

REQUIRED = {"appendonly": "yes", "appendfsync": "always"}
"""Redis' settings that the durable profile needs."""


def problem(config: Mapping[str, str]) -> str:
    """What is wrong with these settings of Redis; empty if they are durable."""
    wrong = [
        f"{name} is {config.get(name)}, it has to be {value}"
        for name, value in REQUIRED.items()
        if config.get(name) != value
    ]
    return "; ".join(wrong)


async def weakness(redis: Any) -> str:
    """Why this server loses all jobs when it stops; empty if it does not, or hides its settings.

    Raises StoreError.
    """
    try:
        config = await _read(redis, ["appendonly"])
    except StoreRefused:  # managed servers have no CONFIG
        return ""
    if config.get("appendonly") == "no":
        return "appendonly is no: jobs are lost when Redis stops; set it to yes"
    return ""


async def refuse_volatile(redis: Any) -> None:
    """Raise SettingsError if this client's server may lose what it has acknowledged.

    A server that is away passes, and so does one that hides its settings, with a warning.
    """
    name = server_name(redis)
    try:
        config = await _read(redis, REQUIRED)
    except StoreRefused as error:  # managed servers have no CONFIG
        log.warning("FLOTILLA_DURABLE: the settings of Redis %s can't be read: %s", name, error)
        return
    except StoreError:
        return
    found = problem(config)
    if found:
        raise SettingsError(f"Redis {name} is not durable (FLOTILLA_DURABLE): {found}")


async def rewrite_log_once(redis: Any) -> None:
    """Have a server that was started write its append-only file anew, if it has not done so.

    One that was killed while it wrote a transaction cuts off the last command only (7.0), and
    appends to what is left: its next start would carry out that part of the transaction, and drop
    what follows if no other transaction does. Raises StoreError.
    """
    found = await redis.info("persistence")
    written = found.get("aof_last_rewrite_time_sec", -1) >= 0  # since its start
    if not found.get("aof_enabled") or written or found.get("aof_rewrite_in_progress"):
        return
    with contextlib.suppress(StoreRefused):  # a snapshot is written now, or it may not be asked
        await redis.bgrewriteaof()


async def _read(redis: Any, names: Iterable[str]) -> dict[str, str]:
    found = await redis.config_get(*names)
    return {_text(key): _text(value) for key, value in found.items()}


def _text(word: bytes | str) -> str:
    return word.decode() if isinstance(word, bytes) else word
