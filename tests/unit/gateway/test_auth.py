"""Authentication: API keys and tenants."""

from __future__ import annotations

import hashlib

import pytest

from gateway.http.auth import (
    PEER,
    Authenticator,
    Peer,
    authorizations_in,
    key_of,
)
from gateway.http.known_keys import KnownKeys
from shared.job.errors import Unauthorized
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


def test_a_valid_key_authenticates_its_connection() -> None:
    authenticator, peer = Authenticator(KNOWN), Peer()

    def scope(*keys: bytes) -> dict[str, object]:
        headers = [(b"authorization", key) for key in keys]
        return {"headers": headers, "client": ("203.0.113.7", 1), "state": {PEER: peer}}

    for keys in ((), (b"Bearer sk-2",)):
        with pytest.raises(Unauthorized):
            authenticator.key(scope(*keys))
    assert not peer.authenticated
    assert authenticator.key(scope(b"Bearer sk-1")).tenant == "alice"
    assert peer.authenticated
