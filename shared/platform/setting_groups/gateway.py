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
_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_TENANT = re.compile(r"^[A-Za-z0-9_.-]{1,64}$")


class GatewaySettings(BaseModel):
    """Settings that only the gateway reads."""

    host: str = Field(
        "127.0.0.1", description="address that it listens on; others than loopback need API keys"
    )
    port: int = Field(8000, ge=0, le=65535, description="0: any free one")
    api_keys: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        (), description="`name:key` or `key`, comma separated (in a secret file also one a line)"
    )
    api_keys_file: Path | None = Field(None, description="the same, one a line")
    admin_keys: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        (),
        description="API keys of operators, written alike: only these may use /admin and vLLM's "
        "routes for operators",
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="further host names of the gateway, comma separated, without port. Without API "
        "keys it answers only to these, to `localhost` and to IP addresses; web pages of these "
        "hosts may call it",
    )
    default_model: str = Field(
        "", description="for requests that name no model; empty: the only one, if there is one"
    )
    max_body_bytes: int = Field(8 << 20, ge=1024, description="size limit of a JSON body")
    max_upload_bytes: int = Field(
        26 << 20,
        ge=1024,
        description="size limit of a form with a file (audio); it waits in Redis with its job",
    )
    max_body_values: int = Field(
        1_000_000,
        ge=1000,
        description="JSON values in one request's body; each token id of a prompt is one",
    )
    max_body_objects: int = Field(
        200_000, ge=1000, description="JSON objects, lists and strings in one request's body"
    )
    max_sequences: int = Field(
        512, ge=1, le=1024, description="prompts times `n`, in one completions request"
    )
    max_inputs: int = Field(
        2048,
        ge=1,
        description="inputs of one request for embeddings, classes or scores",
    )
    max_messages: int = Field(10_000, ge=1, description="messages of one conversation")
    body_timeout_s: float = Field(
        30.0, gt=0, description="time limit for receiving a request's body"
    )
    max_header_bytes: int = Field(
        32 << 10, ge=1024, description="size limit of a request line and its headers together"
    )
    header_timeout_s: float = Field(
        10.0,
        gt=0,
        description="time limit for a request's headers; closes silent connections too",
    )
    max_waiting_connections: int = Field(
        512,
        ge=1,
        description="connections of one address (IPv6: of one /64) without a valid key or a "
        "complete request; above the limit the oldest are closed. Connections with a running "
        "request, or with an earlier valid key, do not count",
    )
    wrong_keys_per_minute: int = Field(
        20,
        ge=0,
        description="wrong keys of one address that are answered at once; further ones are "
        "answered after a second, only some at a time. Requests with a valid key are never delayed",
    )
    max_attempts: int = Field(
        3,
        ge=1,
        le=100,
        description="attempts before dead-lettering: how many workers one job may lose",
    )
    keepalive_s: float = Field(
        10.0, gt=0, description="a stream without data gets a comment after this time"
    )
    stream_pace_s: float = Field(
        0.0,
        ge=0,
        le=1,
        description="shortest time between two writes to one stream; 0 writes at once",
    )
    write_timeout_s: float = Field(
        60.0,
        ge=1,
        le=86_400,
        description="a client that takes no data for this time, though some waits for it, or whose "
        "machine does not answer, is disconnected",
    )
    stream_buffer_bytes: int = Field(
        1 << 20, ge=4096, description="data kept in memory for one slow client"
    )
    disconnect_grace_s: float = Field(
        2.0,
        ge=0,
        le=86_400,
        description="how long the job of a /v1 call runs on without a client, unless the request "
        "says otherwise; 0 cancels it at once",
    )
    result_ttl_s: float = Field(
        86_400.0, ge=1, description="how long a finished job of /jobs is kept"
    )
    stream_ttl_s: float = Field(
        900.0, ge=1, description="how long the finished job of a /v1 call is kept"
    )

    operation_timeout_s: float = Field(
        120.0,
        gt=0,
        le=3600,
        description="time for all workers of a pool to answer an operator call, as the load of an "
        "adapter; a worker that takes longer still does it",
    )
    response_ttl_s: float = Field(
        172_800.0, ge=1, description="how long a stored response of /v1/responses is kept"
    )
    conversation_ttl_s: float = Field(
        30 * 86_400.0,
        ge=60,
        description="how long a conversation is kept after its last use, and its responses",
    )
    max_kept_jobs: int = Field(
        5_000_000,
        ge=0,
        description="jobs of one tenant that are kept at a time: those that wait and run, and "
        "those that have ended and not expired; responses are jobs. 0: no limit. Of several shards "
        "each has an equal share",
    )
    max_kept_conversations: int = Field(
        200_000,
        ge=0,
        description="conversations of one tenant that are kept at a time; 0: no limit",
    )
    max_kept_bytes: int = Field(
        4 << 30,
        ge=0,
        description="bytes of one tenant that are kept at a time: conversations, and requests and "
        "answers above 4 KiB; 0: no limit",
    )
    access_log: bool = Field(True, description="log a line for each request")
    trace_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        description="share of requests that are traced, where there are traces; also all of an "
        "operator's whose `traceparent` says so, and none of a client's that says not",
    )
    grace_s: int = Field(
        10,
        ge=1,
        le=3600,
        description="time for open responses after SIGTERM before they end with an error",
    )
    keyless: bool = Field(
        False,
        description="allow an address that other machines reach without API keys: for a container "
        "whose port is published on loopback only",
    )

    @field_validator("api_keys", "admin_keys", mode="before")
    @classmethod
    def _split_keys(cls, value: Any) -> Any:
        if isinstance(value, str):
            keys = value.replace("\n", ",").split(",")
            return tuple(SecretStr(key.strip()) for key in keys if key.strip())
        return value

    @field_validator("api_keys", "admin_keys")
    @classmethod
    def _check_keys(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        for key in keys:
            _split_key(key.get_secret_value())
        return keys

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _split_hosts(cls, value: Any) -> Any:
        names = value.split(",") if isinstance(value, str) else value
        return tuple(str(name).strip().lower() for name in names if str(name).strip())

    @field_validator("allowed_hosts")
    @classmethod
    def _check_hosts(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not _HOST.fullmatch(name):
                raise ValueError(f"{name[:64]!r} is no host name: without scheme, port and `*`")
        return names

    def tenants(self) -> Mapping[str, str]:
        """SHA-256 of each API key (hex) -> the tenant it stands for. Keys themselves are not kept.

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
        """SHA-256 (hex) of each key in `admin_keys`. Each is one of `tenants` too."""
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
