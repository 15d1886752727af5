"""Settings of the autoscaler."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class AutoscalerSettings(BaseModel):
    """The autoscaler's timer, and who starts and drains workers."""

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
