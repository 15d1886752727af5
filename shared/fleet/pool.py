"""The settings of one pool, and all pools in a process's settings. pools.py makes them."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Literal

from pydantic import BaseModel, ConfigDict

from shared.fleet.autoscale_types import Limits
from shared.platform.settings import PREFIX, SettingsError


class Pool(BaseModel):
    """Settings of one pool. Never changes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    given_name: str = ""
    """Empty: the name is made of the model's."""
    served_model_name: str
    """The model's name for clients; answers have this one."""
    aliases: tuple[str, ...] = ()
    """Its other names for clients."""
    version: str = ""
    """Of the model; empty if the pool is the only one that serves these names."""
    weight: int = 100
    """This version's share of the requests that name no version."""
    model: str = ""
    """Hub id or folder; empty is the demo model."""
    engine: Literal["vllm", "simulated"] = "vllm"
    engine_args: str = ""
    """vLLM's own arguments, as on its command line."""
    adapters: tuple[str, ...] = ()
    """The names of the LoRA adapters that every worker loads at its start."""
    workers: tuple[int, int] = (1, 1)
    """(Least, most) workers that `flotilla up` runs; if they differ, the autoscaler decides."""
    startup_timeout_s: float = 3600.0
    max_queue_depth: int
    """Waiting jobs per shard and lane."""
    deadline_s: float | None = None
    """Deadlines of jobs that set none: this one for the whole job, and the next two."""
    queue_deadline_s: float | None = None
    run_deadline_s: float | None = None
    allow_fields: tuple[str, ...] = ()
    """Fields of requests that are refused in other pools."""
    hooks: tuple[str, ...] = ()
    """`module:function`, called by the workers around the engine."""
    autoscale: Limits | None = None
    """None: no autoscaler sets the number of the pool's workers."""
    docker_project: str = ""
    docker_service: str = ""
    """The Compose service whose containers are its workers, for the docker actuator."""

    @property
    def name(self) -> str:
        """The pool's name, in keys, metrics and the API."""
        return self.given_name or pool_name(self.served_model_name)

    @property
    def served_names(self) -> tuple[str, ...]:
        """All names of the model for clients, without versions."""
        return (self.served_model_name, *self.aliases)

    @property
    def has_deadlines(self) -> bool:
        """Whether its jobs have deadlines that their requests need not set."""
        return any((self.deadline_s, self.queue_deadline_s, self.run_deadline_s))

    @property
    def engine_names(self) -> tuple[str, ...]:
        """The names that the engine has to accept: each alone, and with the version."""
        versioned = (f"{name}:{self.version}" for name in self.served_names if self.version)
        return (*self.served_names, *versioned)


class Pools(BaseModel):
    """The pools in a process's settings; the registry may list more."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    all: tuple[Pool, ...]
    """At least one."""
    own_name: str = ""
    """Of the pool that a worker joins; empty: the only one."""
    declared: bool = False
    """flotilla.yaml lists them, so each exists, also without workers."""

    @property
    def own(self) -> Pool:
        """The pool that a worker joins. Raises SettingsError if it is not clear which."""
        if len(self.all) == 1 or not self.declared:
            return self.all[0]
        for pool in self.all:
            if pool.name == self.own_name:
                return pool
        names = ", ".join(pool.name for pool in self.all)
        raise SettingsError(f"{PREFIX}POOL={self.own_name!r} must name the worker's pool: {names}")

    @property
    def others(self) -> tuple[Pool, ...]:
        """All but the process's own."""
        return self.all[1:]

    @property
    def autoscaled(self) -> tuple[Pool, ...]:
        """The pools whose number of workers the autoscaler decides."""
        return tuple(pool for pool in self.all if pool.autoscale is not None)


def pool_name(model: str) -> str:
    """The name of the pool that serves `model`: readable, unique, and safe in a key."""
    slug = re.sub(r"[^a-z0-9.-]+", "-", model.lower()).strip("-")[:40] or "model"
    return slug if slug == model else f"{slug}-{sha256(model.encode()).hexdigest()[:8]}"
