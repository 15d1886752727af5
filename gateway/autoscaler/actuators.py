"""Who starts and drains the workers that the autoscaler wants."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from gateway.autoscaler.docker import Docker
from shared.fleet.registry import WorkerInfo
from shared.platform.settings import Settings


class Actuator(Protocol):
    """Something that can start and drain workers of one pool."""

    async def converge(
        self, wanted: int, workers: Sequence[WorkerInfo], told: Collection[str]
    ) -> list[str]:
        """Act once. `workers` are the pool's, `told` names what was told to drain before.

        Returns what has been told to drain, now or before, and still runs. Raises OSError or
        httpx.HTTPError.
        """
        ...


class Elsewhere:
    """The acting is somebody else's, who reads the decision: `flotilla up`, or KEDA."""

    async def converge(
        self,
        wanted: int,
        workers: Sequence[WorkerInfo],
        told: Collection[str],
    ) -> list[str]:
        return []


def actuator(settings: Settings) -> Actuator:
    """The one that the settings name."""
    if settings.autoscale_actuator == "docker":
        return Docker(settings.docker_host, settings.docker_project, settings.docker_service)
    return Elsewhere()
