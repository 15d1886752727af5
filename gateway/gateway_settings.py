"""Settings of a gateway: limits of requests, and how long results are kept."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from gateway.listen_settings import ListenSettings
from shared.fleet.pool_settings import PoolSettings
from shared.job.rules import Quotas
from shared.platform.settings import SettingList
from shared.storage import MAX_BLOB_BYTES, StorageSettings
from shared.webhooks.webhook_settings import WebhookSettings

_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]+")
_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")


class GatewaySettings(ListenSettings, PoolSettings, StorageSettings, WebhookSettings):
    """Settings that only a gateway reads."""

    allowed_hosts: SettingList = Field(
        (),
        description="further host names of the gateway, comma separated, without port. Without API "
        "keys it answers only to these, to `localhost` and to IP addresses; its own page works "
        "under them (pages of others: `cors_origins`)",
    )
    cors_origins: SettingList = Field(
        (),
        description="web pages that may call the gateway from a browser (CORS), with an API key: "
        "origins such as `https://app.example`, comma separated, or `*`. Needs API keys",
    )
    default_model: str = Field(
        "",
        description="for requests that name no model; empty: the only one, else the only one that "
        "is ready",
    )
    max_body_bytes: int = Field(
        32 << 20, ge=1024, description="size limit of a JSON body; of a compressed one, unpacked"
    )
    max_held_body_bytes: int = Field(
        128 << 20,
        ge=1024,
        description="bytes of all bodies above 64 KiB that a gateway holds at a time, until their "
        "jobs are queued; half of them for one tenant. One body always fits; further ones wait up "
        "to 5 s, then 503",
    )
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
    max_inputs: int = Field(
        2048,
        ge=1,
        description="inputs of one request for embeddings, classes or scores",
    )
    body_timeout_s: float = Field(
        30.0,
        gt=0,
        description="time limit for receiving a request's body; of a file's upload, for the next "
        "part of it",
    )
    header_timeout_s: float = Field(
        10.0,
        gt=0,
        description="time limit for a request's headers; closes silent connections too",
    )
    idle_connection_s: int = Field(
        120,
        ge=1,
        le=86_400,
        description="how long a connection stays open between two requests with a valid key. "
        "Set it higher than the idle timeout of clients and proxies: else they send requests on "
        "connections that are being closed",
    )
    keys_without_redis_s: float = Field(
        60.0,
        ge=0,
        le=86_400,
        description="how long keys of `flotilla keys` are accepted while Redis is away; then 503",
    )
    max_attempts: int = Field(
        3,
        ge=1,
        le=100,
        description="how many workers one job may lose in a row, without progress, before it fails",
    )
    keepalive_s: float = Field(
        10.0, gt=0, description="a stream without data gets a comment after this time"
    )
    stream_status_wait_s: float = Field(
        2.0,
        ge=0,
        le=60,
        description="a stream without data begins with a comment after this time. Until then an "
        "error is answered with its own status, afterwards as an event in a 200",
    )
    write_timeout_s: float = Field(
        60.0,
        ge=1,
        le=86_400,
        description="a client that takes no data for this time, though some waits for it, or whose "
        "machine does not answer, is disconnected",
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
        description="time for all workers of a pool to answer an operator call, such as the load "
        "of an adapter; a worker that takes longer still does it",
    )
    response_ttl_s: float = Field(
        172_800.0, ge=1, description="how long a stored response of /v1/responses is kept"
    )
    conversation_ttl_s: float = Field(
        30 * 86_400.0,
        ge=60,
        description="how long a conversation is kept after its last use, and its responses",
    )
    max_kept_bytes: int = Field(
        0,
        ge=0,
        description="bytes of one tenant that Redis keeps at a time: its jobs with requests, "
        "answers and logs, conversations, deliveries, batches and files' records. 0: a quarter of "
        "its maxmemory where several tenants keep data. Of several shards each has an equal share",
    )
    max_waiting_jobs: int = Field(
        0,
        ge=0,
        description="jobs of one tenant that may wait in one lane of a pool; 0: as many as there "
        "is room for (`max_queue_depth`). Of several shards each has an equal share",
    )
    redis_high_watermark: float = Field(
        0.9,
        gt=0,
        le=1,
        description="share of Redis' maxmemory, but for 20 MB, above which new jobs are refused of "
        "those tenants that keep most; without a maxmemory all are accepted",
    )
    max_file_bytes: int = Field(
        32 << 30, ge=1, le=MAX_BLOB_BYTES, description="size limit of a file of /v1/files"
    )
    max_stored_bytes: int = Field(
        1 << 40,
        ge=0,
        description="bytes of the files of one tenant that are stored at a time; 0: no limit",
    )
    access_log: bool = Field(True, description="log a line for each request")
    trace_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        description="share of requests that are traced, if traces are exported. Of those with a "
        "`traceparent`: none whose flag `sampled` is not set, and all of an operator's where it is",
    )
    max_choices: int = Field(
        64, ge=1, le=1024, description="`n`; vLLM's own limit is VLLM_MAX_N_SEQUENCES"
    )

    @property
    def quotas(self) -> Quotas:
        """What is kept of one tenant in Redis, and waits, at most."""
        return Quotas(self.max_kept_bytes, self.max_waiting_jobs)

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if not _ORIGIN.fullmatch(origin.lower()):
                raise ValueError(f"{origin[:64]!r} is no origin: `https://app.example` or `*`")
        return tuple(map(str.lower, origins))

    @field_validator("allowed_hosts")
    @classmethod
    def _check_hosts(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not _HOST.fullmatch(name.lower()):
                raise ValueError(f"{name[:64]!r} is no host name: without scheme, port and `*`")
        return tuple(map(str.lower, names))
