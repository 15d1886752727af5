"""Settings of the gateway: address, API keys, limits, how long results are kept."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from shared.platform.setting_groups.errors import PREFIX, SettingsError

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_TENANT = re.compile(r"^[A-Za-z0-9_.-]{1,64}$")


class GatewaySettings(BaseModel):
    """Settings that only the gateway reads."""

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    api_keys: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        (), description="`name:key` or `key`, comma separated (in a secret file also by lines)"
    )
    api_keys_file: Path | None = Field(None, description="the same, one a line")
    max_body_bytes: int = Field(8 << 20, ge=1024)
    max_body_values: int = Field(
        1_000_000, ge=1000, description="values in one request's body, of prompts of token ids too"
    )
    max_body_objects: int = Field(
        200_000, ge=1000, description="objects, lists and strings in one request's body"
    )
    max_sequences: int = Field(
        512, ge=1, le=1024, description="prompts times `n` of one completions request"
    )
    max_messages: int = Field(10_000, ge=1, description="messages of one chat request")
    body_timeout_s: float = Field(30.0, gt=0, description="a request's body must be here by then")
    max_header_bytes: int = Field(
        32 << 10, ge=1024, description="of a request line and its headers together"
    )
    header_timeout_s: float = Field(
        10.0, gt=0, description="a request's headers must be here by then; a silent client too"
    )
    max_waiting_connections: int = Field(
        512,
        ge=1,
        description="of one address (IPv6: one /64) that show no valid key and no request for a "
        "second or two; the oldest of more are closed. Requests in work do not count, nor do "
        "connections on which a key was valid once, such as a proxy's",
    )
    wrong_keys_per_minute: int = Field(
        20,
        ge=0,
        description="of one address, answered at once; more are answered a second late, and only "
        "so many at a time. A valid key is never held up",
    )
    max_attempts: int = Field(3, ge=1, le=100, description="workers a job may take down with it")
    keepalive_s: float = Field(10.0, gt=0, description="silence on a stream before a comment")
    stream_pace_s: float = Field(
        0.0, ge=0, le=1, description="a stream is written at most so often, in larger pieces"
    )
    stream_buffer_bytes: int = Field(
        1 << 20, ge=4096, description="what may wait in memory for one slow reader"
    )
    result_ttl_s: float = Field(86_400.0, ge=1, description="how long an ended /jobs job is kept")
    stream_ttl_s: float = Field(900.0, ge=1, description="the same for a /v1 call's job")

    access_log: bool = Field(True, description="a line in the gateway's log for each request")
    grace_s: int = Field(
        10,
        ge=1,
        le=3600,
        description="what open answers get after SIGTERM before they end with an error",
    )
    keyless: bool = Field(
        False,
        description="no API keys on an address that others reach: for a container whose port is "
        "published on loopback only",
    )

    @field_validator("api_keys", mode="before")
    @classmethod
    def _split_keys(cls, value: Any) -> Any:
        if isinstance(value, str):
            keys = value.replace("\n", ",").split(",")
            return tuple(SecretStr(key.strip()) for key in keys if key.strip())
        return value

    @field_validator("api_keys")
    @classmethod
    def _check_keys(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        for key in keys:
            _split_key(key.get_secret_value())
        return keys

    def tenants(self) -> Mapping[str, str]:
        """SHA-256 of each API key (hex) -> the tenant it stands for. Keys themselves are not kept.

        Raises SettingsError if `api_keys_file` can't be read.
        """
        keys = [key.get_secret_value() for key in self.api_keys]
        if self.api_keys_file is not None:
            keys += _read_keys(self.api_keys_file)
        tenants = {}
        for entry in keys:
            name, key = _split_key(entry)
            digest = hashlib.sha256(key.encode()).hexdigest()
            tenants[digest] = name or f"key-{digest[:8]}"
        return tenants


def _read_keys(path: Path) -> list[str]:
    where = f"{PREFIX}API_KEYS_FILE={path}"
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
        keys = [line for line in lines if line and not line.startswith("#")]
        for key in keys:
            _split_key(key)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{where}: {error}") from error
    if not keys:  # an empty file must not open the door
        raise SettingsError(f"{where}: there is no key in it")
    return keys


def _split_key(entry: str) -> tuple[str, str]:
    name, colon, key = entry.partition(":")
    if entry.startswith("#"):  # a comment must not become a key
        raise ValueError("an API key does not begin with '#'; FLOTILLA_API_KEYS_FILE has comments")
    if not colon:
        return "", entry
    if not _TENANT.fullmatch(name) or not key:
        raise ValueError("an API key is `key` or `name:key`; names are letters, digits, '_.-'")
    return name, key
