"""Whether files can be stored and batches advance: what `flotilla doctor` asks a gateway."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from math import inf
from typing import Literal, NamedTuple

from fastapi import APIRouter
from pydantic import BaseModel

from gateway.core.context import Gateway, GatewayDep
from gateway.files.files import Files
from gateway.http.query import known_only
from gateway.ops.overview.models import Problem
from gateway.ops.overview.problems import check
from shared.fleet import limits
from shared.fleet.limits import Level
from shared.job.errors import StorageNotConfigured, StorageUnavailable
from shared.platform.durations import duration
from shared.store.redis.batch_records import BatchRecords, OpenBatch
from shared.store.redis.maintenance_runs import MaintenanceRuns

router = APIRouter(prefix="/admin", tags=["operators"], dependencies=[known_only])

BATCHES, FILES, PRUNE = "batches", "files", "prune"
"""Tasks of maintenance."""
_FIRST_SWEEP_S = 60.0
"""The first `files` comes so long after the first `prune` at most."""


class StorageOverview(BaseModel):
    """The storage of files, as this gateway has just found it, and the batches."""

    object: Literal["storage"] = "storage"
    configured: bool
    free_bytes: int | None
    """Of a folder's disk; null: a bucket."""
    open_batches: int
    problems: list[Problem]


class StorageState(NamedTuple):
    """What is known of the storage and of the batches."""

    error: str
    """Why no file can be stored; empty if files can be."""
    space: tuple[int, int] | None
    """Free and all bytes of its disk."""
    batches: Sequence[OpenBatch]
    served: frozenset[str]
    """Models for which a worker is ready."""
    ages_s: Mapping[str, float]
    """How long ago maintenance has done each of its tasks."""


@router.get("/storage")
async def get_storage(gateway: GatewayDep) -> StorageOverview:
    """Whether files can be stored, which is tried, whether batches advance, and what to do."""
    error, space, configured = "", None, True
    try:
        space = await _try_storage(gateway)
    except StorageNotConfigured:
        configured = False
    except StorageUnavailable as unavailable:
        error = unavailable.cause or str(unavailable)
    runs, fleet = await MaintenanceRuns(gateway.queue.servers).all(), gateway.fleet
    served = (name for name, model in fleet.models.items() if not fleet.wait_reason(model.pool))
    state = StorageState(
        error=error,
        space=space,
        batches=await BatchRecords(gateway.queue).open_now(),
        served=frozenset(served),
        ages_s={task: fleet.now_s() - done_s for task, done_s in runs.items()},
    )
    return StorageOverview(
        configured=configured,
        free_bytes=space[0] if space else None,
        open_batches=len(state.batches),
        problems=find_storage_problems(state, configured=configured),
    )


async def _try_storage(gateway: Gateway) -> tuple[int, int] | None:
    """Write a blob and delete it; the space of the storage."""
    storage = await gateway.of(Files).ready(just_now=True)
    name = f"probes/{gateway.id}"
    await storage.write_bytes(name, b"1")
    await storage.delete([name])
    return await storage.space()


def find_storage_problems(state: StorageState, *, configured: bool) -> list[Problem]:
    """What is wrong, the worst first. `configured`: there is a storage."""
    found = chain(_of_storage(state) if configured else (), _of_batches(state))
    return sorted(found, key=lambda problem: problem.level is not Level.PROBLEM)


def _of_storage(state: StorageState) -> Iterator[Problem]:
    error, ages_s = state.error[:300], state.ages_s
    yield from check(limits.STORAGE_UNAVAILABLE, bool(error), {"why": error})
    if state.space:
        free, total = state.space
        share = 1 - free / max(1, total)
        words = {"share": share, "free": f"{free / 2**30:.1f}"}
        yield from check(limits.STORAGE_FULL, share, words)
    runs = ages_s.get(PRUNE, 0.0) > _FIRST_SWEEP_S
    swept_s = ages_s.get(FILES, inf if runs else 0.0)
    yield from check(limits.STORAGE_NOT_SWEPT, swept_s, {"age": _age(swept_s)})


def _of_batches(state: StorageState) -> Iterator[Problem]:
    if not state.batches:
        return
    late_s, n_open = state.ages_s.get(BATCHES, inf), len(state.batches)
    words = {
        "age": _age(late_s).capitalize(),
        "batches": "1 batch has" if n_open == 1 else f"{n_open} batches have",
    }
    yield from check(limits.BATCHES_LATE, late_s, words)
    for batch in state.batches:
        if not batch.model or batch.model in state.served:
            words = {"batch": batch.id, "age": duration(batch.idle_s)}
            yield from check(limits.BATCH_STUCK, batch.idle_s, words)


def _age(seconds: float) -> str:
    return "so far" if seconds == inf else f"for {duration(seconds)}"
