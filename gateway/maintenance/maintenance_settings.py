"""Settings of the maintenance process."""

from __future__ import annotations

from pydantic import Field, field_validator

from gateway.ops.autoscaler.autoscaler_settings import AutoscalerSettings
from shared.fleet.pool_settings import PoolSettings
from shared.platform import redis_url
from shared.storage import StorageSettings
from shared.webhooks.webhook_settings import WebhookSettings


class MaintenanceSettings(AutoscalerSettings, PoolSettings, StorageSettings, WebhookSettings):
    """Settings that only the maintenance process reads."""

    maintenance_redis_url: str = Field(
        "", description="Redis database for Celery; empty: the database after the fleet's own"
    )
    usage_days: int = Field(
        400, ge=62, le=4000, description="days for which the use of a day is kept"
    )
    repair_interval_s: float = Field(
        30.0, ge=0.2, le=60, description="time between two looks at whether Redis was started anew"
    )

    @field_validator("maintenance_redis_url")
    @classmethod
    def _check_maintenance_url(cls, url: str) -> str:
        if url:
            redis_url.parse(url)
        return url
