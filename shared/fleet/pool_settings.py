"""Settings that describe pools: the process's own in variables, or all of a fleet in flotilla.yaml.

Code reads them as `Pools` (pools.py).
"""

from __future__ import annotations

import re
import shlex

from pydantic import BaseModel, Field, field_validator

from shared.fleet.fleet_settings import FleetSettings
from shared.fleet.pool import MAX_WORKERS, PoolDefaults, PoolEntry
from shared.platform.settings import SettingList

_POOL_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,48}")
_RANGE = re.compile(r"([0-9]{1,6}):([0-9]{1,6})")


class PoolSettings(FleetSettings, PoolDefaults):
    """Settings of the process's own pool, and of the pools that it autoscales."""

    model: str = Field("", description="hub id or folder; empty: the demo model")
    served_model_name: SettingList = Field(
        (), description="the model's names for clients, comma separated; empty: its own"
    )
    engine_args: str = Field("", description="vLLM's own arguments, as on its command line")
    pool: str = Field(
        "",
        description="name of the pool, whose workers share a queue; empty: by the model's name",
    )
    autoscale: str = Field(
        "", description="`model=min:max`, comma separated; empty: no autoscaling"
    )
    autoscale_down_after_s: float = Field(
        120.0, ge=0, description="remove workers after fewer have been enough for this time"
    )
    autoscale_idle_s: float = Field(
        300.0, ge=0, description="remove the last worker after this time without work"
    )
    allow_fields: SettingList = Field(
        (),
        description="fields that are refused unless they are named here, comma separated; * is all "
        "(NEEDS_PERMISSION in shared/api/field_policy.py)",
    )
    pools: dict[str, PoolEntry] = Field(
        default_factory=dict,
        description="by name; FLOTILLA_POOLS__<POOL>__<KEY> sets a key of one",
    )

    @field_validator("engine_args")
    @classmethod
    def _check_arguments(cls, value: str) -> str:
        shlex.split(value)
        return value

    @field_validator("autoscale")
    @classmethod
    def _check_autoscale(cls, value: str) -> str:
        parse_autoscale(value)
        return value

    @field_validator("pools")
    @classmethod
    def _check_pool_names(cls, pools: dict[str, PoolEntry]) -> dict[str, PoolEntry]:
        for name in pools:
            if not _POOL_NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} is no name of a pool: lower-case letters, digits, '.', '-'; "
                    "at most 49"
                )
        return pools


class WorkerPlaceSettings(BaseModel):
    """Settings of a worker that `flotilla up`, which starts workers, reads as well."""

    worker_host: str = Field("127.0.0.1", description="address for health and metrics")
    worker_port: int = Field(
        8100, ge=0, le=65535, description="port for health and metrics; 0: any free one"
    )
    drain_deadline_s: float = Field(
        30.0, ge=0, description="time for running jobs to end after SIGTERM"
    )


class WorkerMemorySettings(BaseModel):
    """The setting of a worker with vLLM that `flotilla up` sets where it is not set already."""

    worker_memory_bytes: int = Field(
        0,
        ge=0,
        description="memory that a worker without a GPU may take with weights and KV cache; 0: of "
        "what is free, as much as leaves room for others",
    )


def parse_range(text: str) -> tuple[int, int]:
    """(least, most) workers of a pool, from `MIN:MAX`. Raises ValueError."""
    match = _RANGE.fullmatch(text.strip())
    least, most = map(int, match.groups()) if match else (0, 0)
    if not max(1, least) <= most <= MAX_WORKERS:
        raise ValueError(
            f"{text!r} is not MIN:MAX, two whole numbers with 0 <= MIN <= MAX and "
            f"1 <= MAX <= {MAX_WORKERS}, as 0:3"
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
