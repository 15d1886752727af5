"""A pool as flotilla.yaml describes it.

Code reads it as a `Pool` (shared/fleet/pools.py), which the variables of one process make, too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from shared.platform.setting_groups.hooks import parse_hooks

MAX_WORKERS = 10_000
Argument = str | int | float | bool | None | list[Any] | dict[str, Any]

_POOL_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,48}")
_VERSION = re.compile(r"[A-Za-z0-9_.-]{1,32}")
_SET_BY_US = {
    "model": "model",
    "served-model-name": "served_names",
    "lora-modules": "adapters",
    "override-generation-config": "sampling",
}


def _split(value: Any) -> Any:
    """A list, from `a, b` too: in a variable there are no lists."""
    return [item.strip() for item in value.split(",")] if isinstance(value, str) else value


def _text(value: Any) -> Any:
    """`version: 2` is a number in YAML."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
Seconds = Annotated[float, Field(ge=0.001, le=30 * 86_400)]


class AutoscaleEntry(BaseModel):
    """What the autoscaler aims at in one pool; None: as the fleet's settings `autoscale_*`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target_wait_s: float | None = Field(None, ge=0)
    utilization: float | None = Field(None, gt=0, le=1)
    down_after_s: float | None = Field(None, ge=0)
    idle_s: float | None = Field(None, ge=0)


class PoolEntry(BaseModel):
    """One entry of `pools`. None: as the fleet's setting of that name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field("", description="hub id or folder; empty: the demo model")
    served_names: Names = Field(
        (), description="the model's names for clients, the first one in answers; empty: `model`"
    )
    version: Annotated[str, BeforeValidator(_text)] = Field(
        "", description="of the model; pools with the same served names need different ones"
    )
    weight: int = Field(
        100, ge=0, le=1_000_000, description="this version's share of requests that name none"
    )
    engine: Literal["vllm", "simulated"] | None = None
    engine_args: str | dict[str, Argument] = Field(
        default_factory=dict, description="vLLM's own arguments, by name or as on its command line"
    )
    adapters: dict[str, str] = Field(
        default_factory=dict, description="LoRA adapters by their names for clients: hub id, folder"
    )
    sampling: dict[str, int | float] = Field(
        default_factory=dict, description="sampling parameters of requests that set none"
    )
    workers: int | None = Field(None, ge=0, le=MAX_WORKERS, description="a fixed number; default 1")
    min_workers: int | None = Field(
        None, ge=0, le=MAX_WORKERS, description="fewest workers; default 1"
    )
    max_workers: int | None = Field(
        None, ge=1, le=MAX_WORKERS, description="more than `min_workers`: the autoscaler decides"
    )
    autoscale: AutoscaleEntry = Field(
        AutoscaleEntry(), description="what the autoscaler aims at in this pool"
    )
    startup_timeout_s: float | None = Field(None, gt=0)
    max_queue_depth: int | None = Field(None, ge=1)
    deadline_s: Seconds | None = Field(
        None, description="of jobs that set none, from submit to the end"
    )
    queue_deadline_s: Seconds | None = Field(None, description="from submit to the first start")
    run_deadline_s: Seconds | None = Field(None, description="from the first start to the end")
    allow_fields: Names = Field((), description="fields of requests that are refused by default")
    hooks: Names = Field(
        (), description="`before=module:function` and others, called by workers around the engine"
    )
    docker_project: str | None = None
    docker_service: str | None = None

    @field_validator("hooks")
    @classmethod
    def _check_hooks(cls, hooks: tuple[str, ...]) -> tuple[str, ...]:
        parse_hooks(",".join(hooks))
        return hooks

    @field_validator("version")
    @classmethod
    def _check_version(cls, version: str) -> str:
        if version and not _VERSION.fullmatch(version):
            raise ValueError("a version is letters, digits, '_', '.', '-'; at most 32")
        return version

    @field_validator("served_names")
    @classmethod
    def _check_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not all(names) or len(set(names)) < len(names):
            raise ValueError("names must not be empty, and none may be there twice")
        return names

    @field_validator("engine_args")
    @classmethod
    def _check_arguments(cls, arguments: Any) -> Any:
        for name in arguments if isinstance(arguments, dict) else ():
            ours = _SET_BY_US.get(name.replace("_", "-"))
            if ours:
                raise ValueError(f"`{name}` is made of the pool's `{ours}`; set that")
        return arguments

    @model_validator(mode="after")
    def _check_workers(self) -> PoolEntry:
        if self.workers is not None and (self.min_workers, self.max_workers) != (None, None):
            raise ValueError("set either `workers`, or `min_workers` and `max_workers`")
        least, most = self.range
        if least > most:
            raise ValueError(f"`min_workers` {least} is more than `max_workers` {most}")
        return self

    @property
    def range(self) -> tuple[int, int]:
        """(least, most) workers."""
        if self.workers is not None:
            return self.workers, self.workers
        least = 1 if self.min_workers is None else self.min_workers
        return least, max(1, least) if self.max_workers is None else self.max_workers


class FileSettings(BaseModel):
    """What flotilla.yaml has beside the settings that are variables, too."""

    config: Path | None = Field(
        None, description="the file with settings; else flotilla.yaml in the working directory"
    )
    pools: dict[str, PoolEntry] = Field(
        default_factory=dict,
        description="by name; FLOTILLA_POOLS__<POOL>__<KEY> sets a key of one",
    )

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
