"""Settings of one pool of workers: its model and engine, its queue, its autoscaling.

Code reads them as a `Pool` (shared/fleet/pools.py), which has room for several.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, Field, field_validator

from shared.platform.setting_groups.hooks import parse_hooks

DEMO_MODEL = "flotilla-demo"
_MAX_WORKERS = 10_000
_RANGE = re.compile(r"([0-9]{1,6}):([0-9]{1,6})")


class PoolSettings(BaseModel):
    """Settings of the process's own pool, and of the pools that it autoscales."""

    engine: Literal["vllm", "simulated"] = Field(
        "vllm", description="simulated: answers without a model, for load and fault tests"
    )
    model: str = Field("", description="hub id or folder; empty: the demo model")
    served_model_name: str = Field(
        "", description="the model's names for clients, comma separated; empty: its own"
    )
    engine_args: str = Field("", description="vLLM's own arguments, as on its command line")
    pool: str = Field(
        "",
        description="name of the pool, whose workers share a queue; empty: by the model's name",
    )
    max_queue_depth: int = Field(100_000, ge=1, description="waiting jobs per pool, shard and lane")
    autoscale: str = Field(
        "", description="`model=min:max`, comma separated; empty: no autoscaling"
    )
    hooks: str = Field(
        "",
        description="functions around each request, as `before=module:function`, `after=...`, "
        "comma separated (worker/plugins/hooks/README.md)",
    )
    hook_timeout_s: float = Field(
        30.0, gt=0, le=3600, description="time limit of one call of a hook"
    )
    docker_project: str = Field("flotilla", description="Compose project of the workers")
    docker_service: str = Field(
        "worker", description="Compose service of the workers; one container for each"
    )
    autoscale_target_wait_s: float = Field(
        5.0, ge=0, description="longest wait for a job once the workers have started"
    )
    autoscale_utilization: float = Field(
        0.8, gt=0, le=1, description="share of the slots that should be busy under steady load"
    )
    autoscale_down_after_s: float = Field(
        120.0, ge=0, description="remove workers after fewer have been enough for this time"
    )
    autoscale_idle_s: float = Field(
        300.0, ge=0, description="remove the last worker after this time without work"
    )

    @field_validator("autoscale")
    @classmethod
    def _check_autoscale(cls, value: str) -> str:
        parse_autoscale(value)
        return value

    @field_validator("hooks")
    @classmethod
    def _check_hooks(cls, value: str) -> str:
        parse_hooks(value)
        return value


def split_names(text: str) -> list[str]:
    """The names in a comma separated list."""
    return list(filter(None, map(str.strip, text.split(","))))


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
