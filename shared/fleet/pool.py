"""One pool: its entry in flotilla.yaml, and what the fleet's settings add.

A pool is a group of workers that serve the same model and share a queue. pools.py makes them.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from shared.fleet.scale_decisions import Limits
from shared.platform.settings import Names, clean

DEMO_MODEL = "flotilla-demo"
MAX_WORKERS = 10_000
Argument = str | int | float | bool | None | list[Any] | dict[str, Any]

_VERSION = re.compile(r"[A-Za-z0-9_.-]{1,32}")
_SET_BY_US = {
    "model": "model",
    "served-model-name": "served_names",
    "lora-modules": "adapters",
    "override-generation-config": "sampling",
}


def _text(value: Any) -> Any:
    """`version: 2` is a number in YAML."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Seconds = Annotated[float, Field(ge=0.001, le=30 * 86_400)]


class PoolDefaults(BaseModel):
    """Settings of all pools; each may have its own in flotilla.yaml."""

    engine: Literal["vllm", "simulated"] = Field(
        "vllm", description="simulated: answers without a model, for load and fault tests"
    )
    startup_timeout_s: float = Field(
        3600.0, gt=0, description="a worker whose model has not loaded after this time ends"
    )
    max_queue_depth: int = Field(100_000, ge=1, description="waiting jobs per pool, shard and lane")
    docker_project: str = Field("flotilla", description="Compose project of the workers")
    docker_service: str = Field(
        "worker", description="Compose service of the workers; one container for each"
    )


class AutoscaleEntry(BaseModel):
    """The autoscaler's times in one pool; None: as the fleet's settings `autoscale_*`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    down_after_s: float | None = Field(None, ge=0)
    idle_s: float | None = Field(None, ge=0)


class PoolEntry(PoolDefaults):
    """One entry of `pools` in flotilla.yaml. What it does not set is as in the fleet's settings."""

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
        AutoscaleEntry(), description="when the autoscaler removes workers of this pool"
    )
    deadline_s: Seconds | None = Field(
        None, description="of jobs that set none, from submit to the end"
    )
    queue_deadline_s: Seconds | None = Field(None, description="from submit to the first start")
    run_deadline_s: Seconds | None = Field(None, description="from the first start to the end")
    allow_fields: Names = Field((), description="fields of requests that are refused by default")

    @field_validator("*")
    @classmethod
    def _clean(cls, value: Any, info: ValidationInfo) -> Any:
        return clean(value, info.field_name or "")

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
        """(least, most) workers; if they differ, the autoscaler decides."""
        if self.workers is not None:
            return self.workers, self.workers
        least = 1 if self.min_workers is None else self.min_workers
        return least, max(1, least) if self.max_workers is None else self.max_workers


class Pool(PoolEntry):
    """A pool with all that holds for it: at least one served name, and nothing left to others."""

    given_name: str = ""
    """Empty: the name is made of the model's."""
    engine_args: str = ""
    """vLLM's own arguments, as on its command line; adapters and sampling parameters among them."""
    limits: Limits | None = None
    """None: no autoscaler sets the number of the pool's workers."""

    @property
    def name(self) -> str:
        """The pool's name, in keys, metrics and the API."""
        return self.name_with(self.served_names[0])

    def name_with(self, model: str) -> str:
        """Its name if the engine serves `model`: vLLM's own arguments may name the model too."""
        return self.given_name or pool_name(model)

    @property
    def has_deadlines(self) -> bool:
        """Whether its jobs have deadlines that their requests need not set."""
        return any((self.deadline_s, self.queue_deadline_s, self.run_deadline_s))

    @property
    def engine_names(self) -> tuple[str, ...]:
        """The names that the engine has to accept: each alone, and with the version."""
        versioned = (f"{name}:{self.version}" for name in self.served_names if self.version)
        return (*self.served_names, *versioned)

    def allows(self, field: str) -> bool:
        """Whether its requests may have a field that is refused by default."""
        return field in self.allow_fields or "*" in self.allow_fields


def pool_name(model: str) -> str:
    """The name of the pool that serves `model`: readable, unique, and safe in a key."""
    slug = re.sub(r"[^a-z0-9.-]+", "-", model.lower()).strip("-")[:40] or "model"
    return slug if slug == model else f"{slug}-{sha256(model.encode()).hexdigest()[:8]}"
