"""From the workers that there are to those that there should be: how many to start, whom to drain.

Pure. Who acts on it: gateway/launcher/scaler.py for processes, gateway/autoscaler/docker.py for containers.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from shared.fleet.registry import WorkerInfo
from shared.protocol.states import WorkerState


class Phase(Enum):
    """Where the life of a worker's process or container is."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


class Instance(NamedTuple):
    """What one worker runs in: a process, a container."""

    name: str
    phase: Phase
    jobs: int
    """That it holds."""


class Plan(NamedTuple):
    """What to do now."""

    start: int
    drain: tuple[str, ...]
    """Names of instances."""


def instance(name: str, worker: WorkerInfo | None, *, told_to_drain: bool) -> Instance:
    """`worker` is what runs in it, None if nothing has announced itself; `told_to_drain` to drain."""
    if told_to_drain or (worker is not None and worker.state is WorkerState.DRAINING):
        phase = Phase.DRAINING
    elif worker is None or worker.state is WorkerState.STARTING:
        phase = Phase.STARTING
    else:
        phase = Phase.SERVING
    return Instance(name, phase, worker.jobs if worker else 0)


def reconcile(wanted: int, instances: Sequence[Instance]) -> Plan:
    """As many as wanted. A worker that loads its model is never ended, and replaces no other yet.

    Who holds the fewest jobs is drained first.
    """
    serving = [instance for instance in instances if instance.phase is Phase.SERVING]
    starting = sum(instance.phase is Phase.STARTING for instance in instances)
    serving.sort(key=lambda instance: (instance.jobs, instance.name))
    drain = serving[: max(0, len(serving) - wanted)]
    return Plan(
        max(0, wanted - len(serving) - starting), tuple(instance.name for instance in drain)
    )
