"""A model as TorchServe's management calls describe it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.jobs.prediction import FIRST_VERSION
from shared.fleet.registry import ModelInfo, WorkerInfo
from shared.fleet.scale_decisions import Scale
from shared.protocol.states import WorkerState

_STATUS = {
    WorkerState.STARTING: "LOADING",
    WorkerState.DRAINING: "UNLOADING",
}


def version_of(name: str) -> str:
    """The version of a model with this name."""
    return name.rpartition(":")[2] if ":" in name else FIRST_VERSION


def listed(model: ModelInfo) -> dict[str, Any]:
    """An entry of TorchServe's list."""
    return {"modelName": model.name, "modelUrl": model.card.get("root") or model.name}


def described(
    model: ModelInfo,
    workers: Sequence[WorkerInfo],
    scale: Scale | None,
    *,
    waiting: int,
    room: int,
    customized: bool,
) -> dict[str, Any]:
    """TorchServe's description. `room`: how many jobs the model's queue takes.

    `customized`: with vLLM's own card of the model, where TorchServe has a handler's metadata.
    """
    own = {"customizedMetadata": model.card} if customized else {}
    return own | {
        "modelName": model.name.partition(":")[0] if ":" in model.name else model.name,
        "modelVersion": version_of(model.name),
        "modelUrl": model.card.get("root") or model.name,
        "engine": "vLLM",
        "runtime": "python",
        "minWorkers": scale.limits.min if scale else len(workers),
        "maxWorkers": scale.limits.max if scale else len(workers),
        "batchSize": max((worker.slots for worker in workers), default=0),
        "maxBatchDelay": 0,
        "loadedAtStartup": True,
        "workers": [_worker(worker) for worker in workers],
        "jobQueueStatus": {
            "remainingCapacity": max(0, room - waiting),
            "pendingRequests": waiting,
        },
    }


def _worker(worker: WorkerInfo) -> dict[str, Any]:
    return {
        "id": worker.id,
        "status": _STATUS.get(worker.state, "READY"),
        "pid": worker.pid,
        "host": worker.host,
        "engine": worker.engine,
        "running": worker.running,
    }
