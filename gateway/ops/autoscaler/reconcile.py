"""Compares the present workers with the wanted number: how many to start, which to drain. Pure.

gateway/launcher/scaler.py acts on it for processes, docker.py for containers.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from shared.fleet.registry import WorkerInfo
from shared.job.states import WorkerState


class Phase(Enum):
    """The phase of life of a worker's process or container."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


class Instance(NamedTuple):
    """A process or container in which one worker runs."""

    name: str
    phase: Phase
    jobs: int
    """That its worker has leased."""


class Plan(NamedTuple):
    """How many instances to start now, and which to drain."""

    start: int
    drain: tuple[str, ...]
    """Names of instances."""


def instance(name: str, worker: WorkerInfo | None, *, draining: bool) -> Instance:
    """`worker`: the one that runs in it; None before its announcement. `draining`: it drains."""
    if draining or (worker is not None and worker.state is WorkerState.DRAINING):
        phase = Phase.DRAINING
    elif worker is None or worker.state is WorkerState.STARTING:
        phase = Phase.STARTING
    else:
        phase = Phase.SERVING
    return Instance(name, phase, worker.jobs if worker else 0)


def reconcile(wanted: int, instances: Sequence[Instance]) -> Plan:
    """The plan that leads to `wanted` workers.

    A worker that loads its model is never drained, and no serving worker is drained in its favour.
    Those with the fewest jobs are drained first.
    """
    serving = [instance for instance in instances if instance.phase is Phase.SERVING]
    starting = sum(instance.phase is Phase.STARTING for instance in instances)
    serving.sort(key=lambda instance: (instance.jobs, instance.name))
    drain = serving[: max(0, len(serving) - wanted)]
    return Plan(
        max(0, wanted - len(serving) - starting), tuple(instance.name for instance in drain)
    )
