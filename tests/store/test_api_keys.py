"""API keys in Redis: what is stored, changes at the same time, and a gateway's copy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis import Redis

from gateway.core.key_refresh import KeyRefresh
from gateway.http.known_keys import KnownKeys
from shared.job.errors import QuotaExceeded, Unauthorized
from shared.platform.malformed import MalformedValues
from shared.platform.tasks import end
from shared.store import api_keys, keys
from shared.store.api_keys import KeyRecords
from shared.store.queue import Queue
from shared.tenants.api_key import ApiKey, digest_of, new_key_id, new_secret
from shared.tenants.rate_limits import NO_LIMITS, RateLimits
from shared.tenants.scopes import ALL_SCOPES
from tests.harness.waiting import eventually

SEEDS = {"0" * 64: "ops"}


def made() -> tuple[str, ApiKey]:
    """A new key and its secret."""
    secret = new_secret()
    return secret, ApiKey(new_key_id(), "team", digest=digest_of(secret.encode()).hex())


@asynccontextmanager
async def gateway(queue: Queue) -> AsyncIterator[KnownKeys]:
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


async def test_what_is_stored_is_found(queue: Queue) -> None:
    records = KeyRecords(queue)
    limits = RateLimits(1, 2, 3)
    key = ApiKey("key_1", "t", ALL_SCOPES, "n", ("m",), 1.5, "flk_1234", 1.0, "ops", limits, "00ff")
    await records.create(key)
    await records.limit_tenant("t", limits)
    found = await records.read()
    assert found.keys == {b"\0\xff": key}
    assert found.tenant_limits == {"t": limits}
    await records.limit_tenant("t", NO_LIMITS)
    await records.revoke(key.id)
    assert (await records.read())[1:] == ({}, {})


async def test_the_number_of_keys_is_bounded(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_keys, "MOST_KEYS", 2)
    records = KeyRecords(queue)
    keys = [made()[1] for _ in range(3)]
    for key in keys[:2]:
        await records.create(key)
        await records.limit_tenant(key.id, RateLimits(1))
    with pytest.raises(QuotaExceeded):
        await records.create(keys[2])
    with pytest.raises(QuotaExceeded):
        await records.limit_tenant("another", RateLimits(1))
    # Those that are there can change.
    assert await records.change(keys[0].id, lambda key: key._replace(name="n"))
    await records.limit_tenant(keys[0].id, RateLimits(2))


async def test_a_gateway_learns_of_changes_with_and_without_a_message(
    queue: Queue, server: Redis
) -> None:
    records = KeyRecords(queue)
    secret, key = made()
    async with gateway(queue) as known:
        await records.create(key)
        await becomes(known, secret, True)
        assert [tenant.name for tenant in known.tenants] == ["ops", "team"]
        # As after a lost message: the version alone tells.
        server.hdel(keys.first(keys.DOCUMENTS, "key"), key.id)
        channel = keys.channel_at(0, keys.API_KEYS_CHANNEL)
        server.set(keys.first(keys.DOCUMENT_VERSION, channel), "another")
        await becomes(known, secret, False)
        await records.create(key._replace(id=new_key_id()))
        await becomes(known, secret, True)
        server.flushall()  # a Redis without its data has no keys
        await becomes(known, secret, False)
