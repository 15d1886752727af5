"""An API key stands for a tenant, or for nobody."""

from __future__ import annotations

import hashlib

import pytest

from gateway.auth import ANYBODY, tenant_of
from shared.errors import Unauthorized

KEY = b"sk-1"
TENANTS = {
    hashlib.sha256(KEY).hexdigest(): "alice",
    hashlib.sha256("schlüssel".encode()).hexdigest(): "bob",
}


@pytest.mark.parametrize(
    ("header", "tenant"),
    [
        (b"Bearer sk-1", "alice"),
        (b"bearer sk-1", "alice"),
        (b"BEARER   sk-1 ", "alice"),
        ("Bearer schlüssel".encode(), "bob"),
    ],
)
def test_a_known_key_is_its_tenant(header: bytes, tenant: str) -> None:
    assert tenant_of([header], TENANTS) == tenant


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
def test_anything_else_is_nobody(headers: list[bytes]) -> None:
    with pytest.raises(Unauthorized) as caught:
        tenant_of(headers, TENANTS)
    assert "sk-1" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("headers", [[], [b"Bearer whatever"], [b"nonsense", b"twice"]])
def test_where_no_keys_are_configured_everyone_is_the_same(headers: list[bytes]) -> None:
    assert tenant_of(headers, {}) == ANYBODY
