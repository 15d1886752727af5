"""Authentication: API keys and tenants, and the limits for wrong keys."""

from __future__ import annotations

import asyncio
import hashlib
import logging

import pytest
from prometheus_client import CollectorRegistry

from gateway.http import auth
from gateway.http.auth import (
    PEER,
    Authenticator,
    Peer,
    WrongKeys,
    authorizations_in,
    key_of,
    source_of,
)
from gateway.http.known_keys import KnownKeys
from shared.job.errors import TooManyWrongKeys, Unauthorized
from shared.platform.metrics.gateway import GatewayMetrics
from shared.tenants.tenant import DEFAULT_TENANT

KEY = b"sk-1"
TENANTS = {
    hashlib.sha256(KEY).hexdigest(): "alice",
    hashlib.sha256("schlüssel".encode()).hexdigest(): "bob",
}
KNOWN = KnownKeys(TENANTS)


@pytest.mark.parametrize(
    ("header", "tenant"),
    [
        (b"Bearer sk-1", "alice"),
        (b"bearer sk-1", "alice"),
        (b"BEARER   sk-1 ", "alice"),
        ("Bearer schlüssel".encode(), "bob"),
    ],
)
def test_a_valid_key_gives_its_tenant(header: bytes, tenant: str) -> None:
    assert key_of([header], KNOWN).tenant == tenant


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([], id="none"),
        pytest.param([b""], id="empty"),
        pytest.param([b"Bearer"], id="scheme only"),
        pytest.param([b"Bearer "], id="empty key"),
        pytest.param([b"sk-1"], id="key only"),
        pytest.param([b"Basic sk-1"], id="other scheme"),
        pytest.param([b"Bearer\tsk-1"], id="tab"),
        pytest.param([b"Bearer sk-2"], id="other key"),
        pytest.param([b"Bearer sk-1x"], id="longer"),
        pytest.param([b"Bearer sk-"], id="shorter"),
        pytest.param([b"Bearer SK-1"], id="other case"),
        pytest.param([b"Bearer sk-1,sk-1"], id="two in one"),
        pytest.param([b"Bearer sk-1", b"Bearer sk-1"], id="twice"),
        pytest.param([b"Bearer sk-1", b"Bearer wrong"], id="right and wrong"),
        pytest.param([b"Bearer ' OR 1=1 --"], id="quotes"),
        pytest.param([b"Bearer " + b"k" * 1_000_000], id="a megabyte"),
        pytest.param([b"Bearer " + next(iter(TENANTS)).encode()], id="the hash itself"),
        pytest.param([b"Bearer \xff\xfe\x00"], id="no text"),
    ],
)
def test_any_other_header_is_unauthorized(headers: list[bytes]) -> None:
    with pytest.raises(Unauthorized) as caught:
        key_of(headers, KNOWN)
    assert "sk-1" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "headers",
    [
        [(b"x-api-key", b"sk-1")],
        [(b"x-api-key", b" sk-1 "), (b"accept", b"*/*")],
        [(b"authorization", b"Bearer sk-1"), (b"x-api-key", b"sk-1")],
        [(b"x-api-key", b"sk-1"), (b"authorization", b"Bearer sk-1")],
    ],
)
def test_x_api_key_counts_as_a_bearer_token(headers: list[tuple[bytes, bytes]]) -> None:
    assert key_of(authorizations_in(headers), KNOWN).tenant == "alice"


@pytest.mark.parametrize(
    "headers",
    [
        [(b"x-api-key", b"")],
        [(b"x-api-key", b"sk-2")],
        [(b"x-api-key", b"Bearer sk-1")],
        [(b"x-api-key", b"sk-1"), (b"x-api-key", b"sk-1")],
        [(b"x-api-key", b"sk-1"), (b"authorization", b"Bearer sk-2")],
        [(b"authorization", b"Bearer sk-1"), (b"authorization", b"Bearer sk-1")],
    ],
)
def test_other_keys_or_two_of_them_are_unauthorized(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(Unauthorized):
        key_of(authorizations_in(headers), KNOWN)


@pytest.mark.parametrize("headers", [[], [b"Bearer whatever"], [b"nonsense", b"twice"]])
def test_without_configured_keys_all_requests_have_the_default_tenant(headers: list[bytes]) -> None:
    assert key_of(headers, KnownKeys({})).tenant == DEFAULT_TENANT


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_the_source_is_an_ipv4_address_or_an_ipv6_network_of_64_bits(
    address: str, source: str
) -> None:
    assert source_of(address) == source


@pytest.fixture
def metrics() -> GatewayMetrics:
    return GatewayMetrics(CollectorRegistry())


async def test_the_number_of_delayed_answers_to_wrong_keys_is_limited(
    metrics: GatewayMetrics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(auth, "_DELAY_S", 0.05)
    wrong = WrongKeys(2, metrics)

    async def tried(n: int, address: str) -> list[object]:
        calls = [wrong.slow_down(address) for _ in range(n)]
        return await asyncio.gather(*calls, return_exceptions=True)

    caplog.set_level(logging.WARNING)
    answers = await tried(30, "203.0.113.7")
    assert answers[:18] == [None] * 18  # two at once, 16 late
    assert all(isinstance(answer, TooManyWrongKeys) for answer in answers[18:])
    assert (b"connection", b"close") in TooManyWrongKeys("x").headers()
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["3 wrong API keys from 203.0.113.7 in 0 s"]  # logged once in a while
    # Other addresses are not delayed, nor is this one once its delayed answers were sent.
    assert await tried(2, "203.0.113.8") == [None, None]
    several = await asyncio.gather(*(tried(30, f"198.51.100.{n}") for n in range(10)))
    delayed = sum(answers.count(None) - 2 for answers in several)
    assert delayed == 64
    assert await tried(1, "203.0.113.7") == [None]


async def test_the_count_of_wrong_keys_starts_again_after_a_minute(
    metrics: GatewayMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "_DELAY_S", 0)
    monkeypatch.setattr(auth, "_MAX_SOURCES", 100)
    now = 0.0
    monkeypatch.setattr(auth, "monotonic", lambda: now)
    wrong = WrongKeys(1, metrics)
    at_once = metrics.wrong_keys.labels("at_once")
    for later in (1.0, 2.0, 50.0, 62.0):
        now = later
        await wrong.slow_down("203.0.113.7")
    assert at_once._value.get() == 2
    for n in range(1000):
        await wrong.slow_down(f"198.51.{n // 256}.{n % 256}")
    assert len(wrong._sources) == 100


async def test_a_valid_key_is_not_delayed_and_authenticates_its_connection(
    metrics: GatewayMetrics,
) -> None:
    authenticator = Authenticator(KNOWN, 0, metrics)
    peer = Peer()

    def scope(*keys: bytes) -> dict[str, object]:
        headers = [(b"authorization", key) for key in keys]
        return {"headers": headers, "client": ("203.0.113.7", 1), "state": {PEER: peer}}

    guesses = [asyncio.create_task(authenticator.key(scope(b"Bearer sk-2"))) for _ in range(20)]
    await asyncio.sleep(0)
    assert not peer.authenticated
    async with asyncio.timeout(0.5):
        assert (await authenticator.key(scope(b"Bearer sk-1"))).tenant == "alice"
        with pytest.raises(Unauthorized):  # a missing key does not count as wrong
            await authenticator.key(scope())
    assert peer.authenticated
    for guess in guesses:
        guess.cancel()
    await asyncio.gather(*guesses, return_exceptions=True)
