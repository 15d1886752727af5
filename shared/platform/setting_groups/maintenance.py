"""Settings of the maintenance process: Celery's Redis, the autoscaler's timer and actuator."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class MaintenanceSettings(BaseModel):
    """Settings that only the maintenance process reads."""

    maintenance_redis_url: str = Field(
        "", description="Redis database for Celery; empty: the database after the fleet's own"
    )
    repair_interval_s: float = Field(
        30.0, ge=0.2, le=60, description="time between two rounds of repairs in Redis"
    )
    autoscale_tick_s: float = Field(
        2.0, ge=0.2, le=60, description="time between two decisions of the autoscaler"
    )

    autoscale_actuator: Literal["none", "docker"] = Field(
        "none", description="who starts and drains workers; none: `flotilla up` or KEDA does"
    )
    docker_host: str = Field(
        "http://docker-proxy:2375",
        description="Docker API that allows to list, start and kill containers",
    )
