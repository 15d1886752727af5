"""Settings of every process of a fleet: Redis, log lines, leases."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from shared.job.rules import PlacementRules, ShareRules
from shared.platform import redis_url
from shared.platform.settings import ProcessSettings

_RULES = ShareRules()
_PLACEMENT = PlacementRules()


class ShareEntry(BaseModel):
    """How tenants share a pool: see `ShareRules`, whose defaults these are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    half_life_s: float = Field(_RULES.half_life_s, ge=0, le=86_400)
    ahead: float = Field(_RULES.ahead, ge=0, le=1)
    lift: float = Field(_RULES.lift, ge=0, le=1)

    @property
    def rules(self) -> ShareRules:
        """As the queue has them."""
        return ShareRules(self.half_life_s, self.ahead, self.lift)


class PlacementEntry(BaseModel):
    """Which worker a job goes to: see `PlacementRules`, whose defaults these are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    patience_s: float = Field(_PLACEMENT.patience_s, ge=0, le=60)
    overtake_s: float = Field(_PLACEMENT.overtake_s, ge=0, le=600)
    window: int = Field(_PLACEMENT.window, ge=0, le=256)

    @property
    def rules(self) -> PlacementRules:
        """As the queue has them."""
        return PlacementRules(self.patience_s, self.overtake_s, self.window)


class FleetSettings(ProcessSettings):
    """Settings that every process of a fleet reads."""

    redis_url: str = Field(
        "redis://127.0.0.1:6379/0",
        description="the fleet's Redis; also redis+sentinel:// or redis+cluster://",
    )
    shards: int = Field(
        1,
        ge=1,
        le=4096,
        description="number of parts that the jobs are divided into: on one Redis 1, on a cluster "
        "as many as its masters, or twice as many, fixed by the first process",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="the least severe log lines that are written"
    )
    log_format: Literal["auto", "json", "pretty"] = Field(
        "auto", description="of log lines; auto is pretty on a terminal and JSON elsewhere"
    )
    otlp_traces_endpoint: str = Field(
        "",
        description="where traces go: http://collector:4318/v1/traces. Empty: none are made. "
        "Needs the extra `tracing`",
    )
    durable: bool = Field(
        False,
        description="refuse a Redis that may lose acknowledged writes when it is killed or its "
        "machine loses power; `flotilla up` starts its own with appendfsync always",
    )
    lease_s: float = Field(
        2.0,
        ge=0.2,
        le=600,
        description="a worker that is connected and gives no sign of life (one each 0.5 s, from a "
        "thread of its own) for so long loses its jobs",
    )

    fair_shares: ShareEntry = Field(
        ShareEntry(),
        description="how tenants share a full pool: `half_life_s`, `ahead`, `lift` (with 0, 0, 1 "
        "these are VTC's rules)",
    )
    placement: PlacementEntry = Field(
        PlacementEntry(),
        description="how jobs find the worker whose prefix cache may hold the beginning of their "
        "prompt: `patience_s`, `overtake_s`, `window`, the waiting jobs of a tenant that a claim "
        "chooses from; 0: any worker takes any job",
    )

    @field_validator("redis_url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        redis_url.parse(url)
        return url

    @field_validator("otlp_traces_endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str) -> str:
        parts = urlsplit(endpoint)
        if endpoint and not (parts.scheme in {"http", "https"} and parts.netloc and parts.path):
            raise ValueError("must be http://host:4318/v1/traces")
        return endpoint
