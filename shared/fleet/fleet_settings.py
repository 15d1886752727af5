"""Settings of every process of a fleet: Redis, log lines, leases."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator

from shared.platform.sentinel_url import is_sentinel
from shared.platform.sentinel_url import parse as parse_sentinel
from shared.platform.settings import ProcessSettings, SettingList


class FleetSettings(ProcessSettings):
    """Settings that every process of a fleet reads."""

    redis_url: str = Field("redis://127.0.0.1:6379/0", description="the fleet's Redis")
    shards: int = Field(
        1, ge=1, le=4096, description="number of parts that the jobs are divided into"
    )
    shard_redis_urls: SettingList = Field(
        (),
        description="Redis servers of the shards, comma separated; shard n is on the n-th, "
        "modulo their number. Empty: all are on the fleet's Redis",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="the least severe log lines that are written"
    )
    log_format: Literal["auto", "json", "pretty"] = Field(
        "auto", description="of log lines; auto is pretty on a terminal and JSON elsewhere"
    )
    otlp_traces_endpoint: str = Field(
        "",
        description="where traces go: http://collector:4318/v1/traces, or file:///a/path for lines "
        "of OTLP as JSON. Empty: none are made. Needs the extra `tracing`",
    )
    fast_paths: Literal["auto", "off"] = Field(
        "auto",
        description="off: never use private parts of uvicorn, redis-py or vLLM to save CPU time",
    )
    loop_stall_s: float = Field(
        60.0, gt=0, description="a process whose event loop stands still for so long ends"
    )
    durable: bool = Field(
        False,
        description="refuse a Redis that may lose acknowledged writes when it is killed or its "
        "machine loses power; `flotilla up` starts its own with appendfsync always",
    )
    lease_s: float = Field(
        15.0, ge=0.2, le=600, description="a worker that renews no lease for so long loses its jobs"
    )
    silence_s: float = Field(
        1.5,
        ge=1,
        description="a worker that is connected and gives no sign of life (one each 0.5 s, from a "
        "thread of its own) for so long loses its jobs",
    )

    @field_validator("redis_url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        _server(url)
        return url

    @field_validator("otlp_traces_endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str) -> str:
        parts = urlsplit(endpoint)
        complete = parts.netloc if parts.scheme in {"http", "https"} else parts.scheme == "file"
        if endpoint and not (complete and parts.path):
            raise ValueError("must be http://host:4318/v1/traces or file:///a/path")
        return endpoint

    @field_validator("shard_redis_urls")
    @classmethod
    def _check_urls(cls, urls: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        # Pub/sub channels belong to a server, not to a database: two subscriptions to one server
        # would receive every message twice.
        if len({_server(url) for url in urls}) < len(urls):
            raise ValueError("a server is named twice")
        if len(urls) > info.data.get("shards", 1):
            raise ValueError(f"{len(urls)} servers need FLOTILLA_SHARDS={len(urls)} or more")
        return urls

    @property
    def server_urls(self) -> tuple[str, ...]:
        """The servers of the shards: shard n is on the n-th of them, modulo their number."""
        return self.shard_redis_urls or (self.redis_url,)

    @property
    def all_redis_urls(self) -> tuple[str, ...]:
        """Every server that holds any of the fleet's keys."""
        return tuple(dict.fromkeys((self.redis_url, *self.server_urls)))


def _server(url: str) -> tuple[str | None, int | None, str]:
    parts = urlsplit(url)
    if is_sentinel(url):
        return None, None, parse_sentinel(url).name
    if parts.scheme == "unix":
        return None, None, parts.path
    if parts.scheme not in {"redis", "rediss"}:
        raise ValueError("must start with redis://, rediss://, unix:// or redis+sentinel://")
    try:
        return parts.hostname, parts.port or 6379, ""
    except ValueError:
        raise ValueError("the port is not a number") from None  # it may be a password
