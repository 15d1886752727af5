"""The pools of a fleet: model, engine, queue and autoscaling of each, as every process reads them.

A pool is a group of workers that serve the same model and share a queue. The variables of a
process describe one pool, its own; `FLOTILLA_AUTOSCALE` may name more. `load_pools`
would also read a file that lists pools, and no caller would change.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Literal

from pydantic import BaseModel, ConfigDict

from shared.fleet.autoscale_types import Limits
from shared.platform.setting_groups.pool import DEMO_MODEL, parse_autoscale
from shared.platform.settings import Settings


class Pool(BaseModel):
    """Settings of one pool. Never changes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    given_name: str = ""
    """Empty: the name is made of the model's."""
    served_model_name: str
    """The model's name for clients."""
    model: str = ""
    """Hub id or folder; empty is the demo model."""
    engine: Literal["vllm", "simulated"] = "vllm"
    engine_args: str = ""
    """vLLM's own arguments, as on its command line."""
    max_queue_depth: int
    """Waiting jobs per shard and lane."""
    autoscale: Limits | None = None
    """None: no autoscaler sets the number of the pool's workers."""
    docker_project: str = ""
    docker_service: str = ""
    """The Compose service whose containers are its workers, for the docker actuator."""

    @property
    def name(self) -> str:
        """The pool's name, in keys, metrics and the API."""
        return self.given_name or pool_name(self.served_model_name)


class Pools(BaseModel):
    """The pools in a process's settings; the registry may list more."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    own: Pool
    """The pool that the process's own variables describe: of a worker, the one it joins."""
    others: tuple[Pool, ...] = ()

    @property
    def autoscaled(self) -> tuple[Pool, ...]:
        """The pools whose number of workers the autoscaler decides."""
        return tuple(pool for pool in (self.own, *self.others) if pool.autoscale is not None)


def load_pools(settings: Settings) -> Pools:
    """The pools that the settings describe."""
    ranges = parse_autoscale(settings.autoscale)
    demo = "simulated" if settings.engine == "simulated" else DEMO_MODEL
    # What a worker announces counts in the end: vLLM's own arguments may name the model too.
    own = settings.served_model_name or settings.model or demo

    def pool(served_model_name: str) -> Pool:
        workers = ranges.get(served_model_name)
        return Pool(
            given_name=settings.pool,
            served_model_name=served_model_name,
            model=settings.model if served_model_name == own else "",
            engine=settings.engine,
            engine_args=settings.engine_args,
            max_queue_depth=settings.max_queue_depth,
            autoscale=_limits(settings, *workers) if workers else None,
            docker_project=settings.docker_project,
            docker_service=settings.docker_service,
        )

    return Pools(own=pool(own), others=tuple(pool(name) for name in ranges if name != own))


def pool_name(model: str) -> str:
    """The name of the pool that serves `model`: readable, unique, and safe in a key."""
    slug = re.sub(r"[^a-z0-9.-]+", "-", model.lower()).strip("-")[:40] or "model"
    return slug if slug == model else f"{slug}-{sha256(model.encode()).hexdigest()[:8]}"


def _limits(settings: Settings, least: int, most: int) -> Limits:
    return Limits(
        min=least,
        max=most,
        target_wait_s=settings.autoscale_target_wait_s,
        utilization=settings.autoscale_utilization,
        down_after_s=settings.autoscale_down_after_s,
        idle_s=settings.autoscale_idle_s,
    )
