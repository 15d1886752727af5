"""Settings of a gateway's address and API keys, which `flotilla up` reads as well."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from shared.platform.settings import PREFIX, SettingsError, clean, split_names

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_TENANT = re.compile(r"^[A-Za-z0-9_.-]{1,64}$")
_Keys = Annotated[
    tuple[SecretStr, ...],
    NoDecode,
    BeforeValidator(lambda value: split_names(value) if isinstance(value, str) else value),
]


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is of this machine alone."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


class TenantEntry(BaseModel):
    """What flotilla.yaml says of a tenant."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    weight: float = Field(1.0, ge=0.01, le=1000)
    priority: bool = False


class ListenSettings(BaseModel):
    """Where a gateway listens, and who may call it."""

    host: str = Field(
        "127.0.0.1", description="address that it listens on; others than loopback need API keys"
    )
    port: int = Field(8000, ge=0, le=65535, description="0: any free one")
    keyless: bool = Field(
        False,
        description="allow an address that other machines reach without API keys: for a container "
        "whose port is published on loopback only",
    )
    api_keys: _Keys = Field(
        (), description="`name:key` or `key`, comma separated (in a secret file also one a line)"
    )
    api_keys_file: Path | None = Field(None, description="the same, one a line")
    admin_keys: _Keys = Field(
        (),
        description="API keys of operators, written alike: only these may use /admin and vLLM's "
        "routes for operators",
    )
    tenants: dict[str, TenantEntry] = Field(
        default_factory=dict,
        description="by the name of their API keys: `weight` is a tenant's share of a full pool, 1 "
        "where it is not set; `priority: true` gives its keys in the settings the scope `priority`",
    )
    grace_s: int = Field(
        10,
        ge=1,
        le=3600,
        description="time for open responses after SIGTERM before they end with an error",
    )

    @field_validator("api_keys", "admin_keys")
    @classmethod
    def _check_keys(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        pairs = (_split_key(each.get_secret_value()) for each in keys)
        return tuple(SecretStr(f"{name}:{key}" if name else key) for name, key in pairs)

    @field_validator("tenants")
    @classmethod
    def _check_tenants(cls, tenants: dict[str, TenantEntry]) -> dict[str, TenantEntry]:
        for name in tenants:
            if not _TENANT.fullmatch(name):
                raise ValueError(f"{name!r} is no tenant: letters, digits, '_.-'")
        return tenants

    def weight(self, tenant: str) -> float:
        """The weight of a tenant."""
        entry = self.tenants.get(tenant)
        return 1.0 if entry is None else entry.weight

    def tenants_by_key(self) -> Mapping[str, str]:
        """SHA-256 (hex) of each API key -> its tenant.

        Raises SettingsError if `api_keys_file` can't be read.
        """
        keys = [key.get_secret_value() for key in (*self.api_keys, *self.admin_keys)]
        if self.api_keys_file is not None:
            keys += _read_keys(self.api_keys_file)
        tenants = {}
        for entry in keys:
            name, key = _split_key(entry)
            digest = hashlib.sha256(key.encode()).hexdigest()
            tenants[digest] = name or f"key-{digest[:8]}"
        return tenants

    def admins(self) -> frozenset[str]:
        """SHA-256 (hex) of each key in `admin_keys`. Each is one of `tenants_by_key` too."""
        keys = (_split_key(entry.get_secret_value())[1] for entry in self.admin_keys)
        return frozenset(hashlib.sha256(key.encode()).hexdigest() for key in keys)


def _read_keys(path: Path) -> list[str]:
    where = f"{PREFIX}API_KEYS_FILE={path}"
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
        keys = [line for line in lines if line and not line.startswith("#")]
        for key in keys:
            _split_key(key)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{where}: {error}") from error
    if not keys:  # without any key, requests need none
        raise SettingsError(f"{where}: there is no key in it")
    return keys


def _split_key(entry: str) -> tuple[str, str]:
    name, colon, key = (part.strip() for part in entry.partition(":"))
    if entry.startswith("#"):  # a comment must not become a key
        raise ValueError("an API key does not begin with '#'; FLOTILLA_API_KEYS_FILE has comments")
    if not colon:
        return "", clean(name)
    if not _TENANT.fullmatch(name) or not key:
        raise ValueError("an API key is `key` or `name:key`; names are letters, digits, '_.-'")
    return name, clean(key)
