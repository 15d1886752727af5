"""API keys in Redis: what is stored, changes at the same time, and a gateway's copy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import redis as sync_redis

from gateway.core.key_refresh import KeyRefresh
from gateway.http.known_keys import KnownKeys
from shared.job.errors import QuotaExceeded, Unauthorized
from shared.platform.malformed import MalformedValues
from shared.platform.tasks import end
from shared.store.redis import key_records, keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.key_records import KeyRecords
from shared.tenants.api_key import ApiKey, digest_of, new_key_id, new_secret
from tests.harness.waiting import eventually

SEEDS = {"0" * 64: "ops"}


def made() -> tuple[str, bytes, ApiKey]:
    """A new key's secret, digest and record."""
    secret = new_secret()
    return secret, digest_of(secret.encode()), ApiKey(new_key_id(), "team")


@asynccontextmanager
async def gateway(queue: JobQueue) -> AsyncIterator[KnownKeys]:
    """A gateway's copy that is kept up to date."""
    known = KnownKeys(SEEDS)
    refresh = KeyRefresh(queue, known, MalformedValues())
    task = asyncio.create_task(refresh.run())
    await refresh.loaded.wait()
    try:
        yield known
    finally:
        await end([task])


def is_known(known: KnownKeys, secret: str) -> bool:
    try:
        known.find(secret.encode())
    except Unauthorized:
        return False
    return True


async def becomes(known: KnownKeys, secret: str, expected: bool, deadline_s: float = 1.0) -> None:
    async def is_so() -> bool:
        return is_known(known, secret) is expected

    await eventually(is_so, f"known: {expected}", deadline_s)


async def test_of_a_rotation_and_a_revocation_at_once_one_wins(queue: JobQueue) -> None:
    records = KeyRecords(queue)
    for _ in range(20):
        _, digest, key = made()
        _, other, _ = made()
        await records.create(digest, key)
        replaced, revoked = await asyncio.gather(
            records.replace(digest, other, key), records.revoke(digest, key)
        )
        assert replaced is not revoked
        assert ((await records.read()).keys() == {}) is revoked
        await records.revoke(other, key)


async def test_the_number_of_keys_is_bounded(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_records, "MOST_KEYS", 2)
    records = KeyRecords(queue)
    for _ in range(2):
        _, digest, key = made()
        await records.create(digest, key)
    with pytest.raises(QuotaExceeded):
        await records.create(*made()[1:])
    assert await records.replace(digest, made()[1], key)  # those that are there can change


async def test_a_gateway_learns_of_changes_with_and_without_a_message(
    queue: JobQueue, store: sync_redis.Redis
) -> None:
    records = KeyRecords(queue)
    secret, digest, key = made()
    async with gateway(queue) as known:
        await records.create(digest, key)
        await becomes(known, secret, True)
        assert [tenant.name for tenant in known.tenants] == ["ops", "team"]
        # As after a lost message: the version alone tells.
        store.hdel(keys.first(keys.API_KEYS), digest)
        store.set(keys.first(keys.API_KEYS_VERSION), "another")
        await becomes(known, secret, False)
        await records.create(digest, key)
        await becomes(known, secret, True)
        store.flushall()  # a Redis without its data has no keys
        await becomes(known, secret, False)


async def test_a_malformed_record_hides_no_other(queue: JobQueue, store: sync_redis.Redis) -> None:
    for value in (b"", b"[]", b"{}", b"\xff", b'{"id": 1}', b"[" * 100_000):
        store.hset(keys.first(keys.API_KEYS), f"digest of {len(value)}", value)
    secret, digest, key = made()
    await KeyRecords(queue).create(digest, key)
    async with gateway(queue) as known:
        assert is_known(known, secret)
