"""Readiness: whether this gateway can queue jobs, and whether workers are there to run them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway.core.context import Gateway
from gateway.core.fleet_view import FleetView
from shared.store.health import write_problems


class Status(StrEnum):
    """What happens to a call that arrives now."""

    READY = "ready"
    """It is answered: a worker of at least one model is ready."""
    NO_WORKER = "no worker"
    """It is queued, and waits until a worker is ready."""
    NOT_READY = "not ready"
    """It is refused, or its answer may not arrive: send it to another gateway."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """The result of all checks."""

    checks: dict[str, str]
    """What this gateway needs to queue jobs -> what is wrong with it, empty if nothing is."""
    models: dict[str, str]
    """Each known model -> why no worker serves it now, empty if one does."""

    @property
    def status(self) -> Status:
        """A gateway without workers still queues jobs, and the autoscaler starts workers for them.

        So only failed checks take it out of a load balancer.
        """
        if any(self.checks.values()):
            return Status.NOT_READY
        served = any(not reason for reason in self.models.values())
        return Status.READY if served else Status.NO_WORKER

    @property
    def http_status(self) -> int:
        """Of the answer to a probe: 200 if jobs can be queued, else 503."""
        return 503 if self.status is Status.NOT_READY else 200

    @property
    def missing(self) -> list[str]:
        """What is wrong, a sentence each."""
        found = [f"{name}: {problem}" for name, problem in self.checks.items() if problem]
        found += [f"model {name}: {reason}" for name, reason in self.models.items() if reason]
        return found if self.models else [*found, "no worker has registered a model yet"]


async def readiness(gateway: Gateway) -> Readiness:
    """Check everything now."""
    return Readiness(await checks(gateway), _models(gateway.fleet))


async def checks(gateway: Gateway) -> dict[str, str]:
    """What this gateway needs to queue jobs -> what is wrong with it, empty if nothing is."""
    ended = [
        f"background task {name} has ended: {why}" for name, why in gateway.tasks.ended.items()
    ]
    return {
        "redis": await _redis(gateway),
        "eviction": gateway.health.eviction,
        "format": gateway.health.format,
        "relay": "" if _subscribed(gateway) else "not subscribed to any Redis server yet",
        "fleet": gateway.fleet.problem,
        "tasks": "; ".join(ended),
    }


def _models(fleet: FleetView) -> dict[str, str]:
    return {name: fleet.wait_reason(model.pool) for name, model in fleet.models.items()}


def _subscribed(gateway: Gateway) -> bool:
    return any(gateway.relay.is_subscribed(shard) for shard in range(gateway.queue.shards))


async def _redis(gateway: Gateway) -> str:
    """Why no job can be queued, if so: that takes the primary, and the server of any shard."""
    primary, of_shards = await write_problems(gateway.queue, gateway.id)
    return primary or min(of_shards, key=bool)
