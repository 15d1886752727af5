"""A model as TorchServe's management calls describe it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.apis.torchserve.prediction import FIRST_VERSION
from shared.fleet.registry import ModelInfo, WorkerInfo
from shared.fleet.scale_decisions import Scale
from shared.job.states import WorkerState

_STATUS = {
    WorkerState.STARTING: "LOADING",
    WorkerState.DRAINING: "UNLOADING",
}


def name_of(model: ModelInfo) -> str:
    """The model's name without its version."""
    return model.served_name or model.name


def version_of(model: ModelInfo) -> str:
    """The model's version, also if it has none."""
    return model.version or FIRST_VERSION


def listed(model: ModelInfo) -> dict[str, Any]:
    """An entry of TorchServe's list."""
    return {"modelName": name_of(model), "modelUrl": model.card.get("root") or model.name}


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
        "modelName": name_of(model),
        "modelVersion": version_of(model),
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
