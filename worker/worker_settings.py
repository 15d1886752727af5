"""Settings of a worker process."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from shared.fleet.pool_settings import PoolSettings, WorkerPlaceSettings

_WORKER_ID = re.compile(r"^[A-Za-z0-9_.-]{1,64}$")


class WorkerSettings(WorkerPlaceSettings, PoolSettings):
    """Settings that only a worker reads."""

    worker_id: str = Field("", description="unique in the fleet; empty: made of the host's name")
    kv_high_watermark: float = Field(
        0.95, gt=0, le=1, description="share of the KV cache above which no job is claimed"
    )
    engine_stall_s: float = Field(
        60.0, gt=0, description="an engine with work that makes no step for this time has hung"
    )

    @field_validator("worker_id")
    @classmethod
    def _check_worker_id(cls, value: str) -> str:
        if value and not _WORKER_ID.fullmatch(value):
            raise ValueError("letters, digits, '_', '.', '-'; at most 64")
        return value
