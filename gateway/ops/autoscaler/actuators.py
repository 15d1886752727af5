"""Actuators start and drain workers, as the autoscaler has decided."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from gateway.ops.autoscaler.autoscaler_settings import AutoscalerSettings
from gateway.ops.autoscaler.docker import Docker
from shared.fleet.pool import Pool
from shared.fleet.registry import WorkerInfo


class Actuator(Protocol):
    """Something that can start and drain workers of one pool."""

    async def reconcile(
        self, wanted: int, workers: Sequence[WorkerInfo], draining: Collection[str]
    ) -> list[str]:
        """Act once. `workers`: the pool's. `draining`: what the last call returned.

        Returns the names of those that drain and still run. Raises OSError or httpx.HTTPError.
        """
        ...


class NoopActuator:
    """Does nothing: `flotilla up` or KEDA reads the decision and acts on it."""

    async def reconcile(
        self,
        wanted: int,
        workers: Sequence[WorkerInfo],
        draining: Collection[str],
    ) -> list[str]:
        """Nothing; returns no names."""
        return []


def actuator(settings: AutoscalerSettings, pool: Pool) -> Actuator:
    """The actuator that the settings name, for one pool."""
    if settings.autoscale_actuator == "docker":
        return Docker(settings.docker_host, pool.docker_project, pool.docker_service)
    return NoopActuator()
