"""Settings of one pool of workers: its model and engine, its queue, its autoscaling.

Code reads them as a `Pool` (shared/fleet/pools.py), which has room for several.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, Field, field_validator

DEMO_MODEL = "flotilla-demo"
_MAX_WORKERS = 10_000
_RANGE = re.compile(r"([0-9]{1,6}):([0-9]{1,6})")


class PoolSettings(BaseModel):
    """Settings of the pool that this process belongs to, or of all pools that it autoscales."""

    engine: Literal["vllm", "simulated"] = "vllm"
    model: str = Field("", description="hub id or folder; empty is the demo model")
    served_model_name: str = Field("", description="the name clients use; empty is the model's own")
    engine_args: str = Field("", description="vLLM's own arguments, as on its command line")
    pool: str = Field("", description="workers of one pool share a queue; empty is by model name")
    max_queue_depth: int = Field(100_000, ge=1, description="waiting jobs per pool, shard and lane")
    autoscale: str = Field(
        "", description="`model=min:max`, comma separated; empty is no autoscaling"
    )
    docker_project: str = Field("flotilla", description="Compose project of the workers")
    docker_service: str = Field("worker", description="its service; one container per worker")
    autoscale_target_wait_s: float = Field(
        5.0, ge=0, description="what a job may have to wait once its workers have started"
    )
    autoscale_utilization: float = Field(
        0.8, gt=0, le=1, description="share of the slots that is to be busy in steady load"
    )
    autoscale_down_after_s: float = Field(
        120.0, ge=0, description="fewer workers must have been enough for so long"
    )
    autoscale_idle_s: float = Field(
        300.0, ge=0, description="nothing waits or runs for so long before the last worker goes"
    )

    @field_validator("autoscale")
    @classmethod
    def _check_autoscale(cls, value: str) -> str:
        parse_autoscale(value)
        return value


def parse_range(text: str) -> tuple[int, int]:
    """(least, most) workers of a pool, from `MIN:MAX`. Raises ValueError."""
    match = _RANGE.fullmatch(text.strip())
    least, most = map(int, match.groups()) if match else (0, 0)
    if not max(1, least) <= most <= _MAX_WORKERS:
        raise ValueError(
            f"{text!r} is not MIN:MAX, two whole numbers with 0 <= MIN <= MAX and "
            f"1 <= MAX <= {_MAX_WORKERS}, as 0:3"
        )
    return least, most


def parse_autoscale(text: str) -> dict[str, tuple[int, int]]:
    """Model -> (least, most) workers, from `MODEL=MIN:MAX`, comma separated. Raises ValueError."""
    ranges: dict[str, tuple[int, int]] = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        model, _, numbers = entry.rpartition("=")
        model = model.strip()
        if not model:
            raise ValueError(f"{entry!r} is not MODEL=MIN:MAX, as my/model=0:3")
        if model in ranges:
            raise ValueError(f"{model!r} is there twice")
        ranges[model] = parse_range(numbers)
    return ranges
