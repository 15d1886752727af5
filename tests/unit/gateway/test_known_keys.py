"""Which API keys a gateway accepts: those of its settings, and its copy of those in Redis."""

from __future__ import annotations

import hashlib
import time

import pytest

from gateway.http.known_keys import ANYONE, KnownKeys
from shared.job.errors import RedisUnavailable, Unauthorized
from shared.tenants.api_key import ApiKey, digest_of, new_secret
from shared.tenants.scopes import ALL_SCOPES, TENANT_SCOPES, Scope
from shared.tenants.tenant import Tenant

SEEDS = {hashlib.sha256(key).hexdigest(): "ops" for key in (b"adm1n", b"flk_seed")}
SECRET = new_secret()


def made(**changes: object) -> dict[bytes, ApiKey]:
    key = ApiKey("key_1", "team")._replace(**changes)  # type: ignore[arg-type]
    return {digest_of(SECRET.encode()): key}


def known(stored: dict[bytes, ApiKey] | None = None, age_s: float = 0) -> KnownKeys:
    found = KnownKeys(SEEDS, frozenset(list(SEEDS)[:1]), 60.0)
    found.replace(made() if stored is None else stored)
    found.checked(time.monotonic() - age_s)
    return found


def test_a_secret_has_random_bits() -> None:
    assert len({new_secret() for _ in range(100)}) == 100
    assert len(SECRET) == 4 + 43


def test_settings_give_tenants_and_operators_their_scopes() -> None:
    keys = known()
    assert keys.find(b"adm1n").scopes == ALL_SCOPES
    assert keys.find(b"flk_seed").scopes == TENANT_SCOPES
    assert keys.find(SECRET.encode()).tenant == "team"
    assert keys.tenants == (Tenant("ops", 2, True), Tenant("team", 1, False))


@pytest.mark.parametrize(
    "secret",
    [b"", b"flk_", b"flk_x", SECRET.encode() + b"x", b"adm1"],
    ids=[
        "empty",
        "prefix",
        "short",
        "longer",
        "other",
    ],  # the secret is another one in each process
)
def test_an_unknown_key_is_unauthorized(secret: bytes) -> None:
    with pytest.raises(Unauthorized):
        known().find(secret)


def test_without_keys_in_the_settings_none_are_needed() -> None:
    keys = KnownKeys({})
    keys.replace(made())
    assert not keys.needed
    assert keys.tenants == (Tenant("default", 0, True),)
    assert ANYONE.scopes == frozenset(Scope)


def test_an_expired_key_is_unauthorized() -> None:
    for expires_at in (0.0, time.time() - 1):
        with pytest.raises(Unauthorized, match="expired"):
            known(stored=made(expires_at=expires_at)).find(SECRET.encode())
    soon = made(expires_at=time.time() + 60)
    assert known(stored=soon).find(SECRET.encode()).id == "key_1"


def test_without_redis_known_keys_are_accepted_for_a_while_and_those_of_settings_for_ever() -> None:
    assert known(age_s=59).find(SECRET.encode()).id == "key_1"
    late = known(age_s=61)
    with pytest.raises(RedisUnavailable):
        late.find(SECRET.encode())
    assert late.find(b"adm1n").tenant == "ops"
    assert known(age_s=61).find(b"flk_seed").tenant == "ops"


def test_without_redis_an_unknown_key_may_be_a_new_one() -> None:
    with pytest.raises(RedisUnavailable):
        known(age_s=3).find(new_secret().encode())
    with pytest.raises(Unauthorized):
        known(age_s=3).find(b"guess")
