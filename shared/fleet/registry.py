"""Who serves what: workers announce themselves and their models, gateways look them up.

A worker's entry expires when it stops announcing itself. Its models stay known, so that jobs for a
fleet that is scaled to zero can wait.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from pydantic import TypeAdapter

from shared.job.states import WorkerState

HEARTBEAT_S = 2.0
"""How often a worker announces itself."""
EXPIRY_S = 5 * HEARTBEAT_S
"""After this time without one it is taken for gone."""
LOADING_EXPIRY_S = 3600.0
"""The same for a worker that loads its model: it announces itself once, before that."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker's announcement."""

    id: str
    pool: str
    state: WorkerState
    engine: str
    models: tuple[str, ...]
    slots: int
    running: int
    """Sequences in the engine."""
    jobs: int
    kv_usage: float
    host: str
    pid: int
    version: str
    reason: str = ""
    """Why it claims as much as it does, in a sentence."""
    start_s: float | None = None
    """From its start to when it could claim; None until then."""
    # Totals since its start. The difference of two heartbeats is what it did in between.
    finished: int = 0
    """Jobs that have ended or were lost; not those that it released."""
    job_s: float = 0.0
    """The time from lease to end of the last of those, a moving mean; 0: none has ended."""
    prompt_tokens: int = 0
    job_ids: tuple[str, ...] = ()
    """Jobs that it runs; of many, the first ones."""
    clock_s: float = 0.0
    """Its own monotonic clock: the difference of two heartbeats is the time between them."""
    output_tokens: int = 0
    """Tokens generated since its start, those of running jobs included."""
    failure: str = ""
    """Why it has failed; empty while it runs. One that ends without a failure deletes its entry."""


class Heartbeat(NamedTuple):
    """A worker's entry in the registry."""

    worker: WorkerInfo
    age_s: float
    """Time since the worker wrote it, by Redis' clock."""


def without_failed(heartbeats: Iterable[Heartbeat]) -> list[WorkerInfo]:
    """The workers that have not failed."""
    return [each.worker for each in heartbeats if not each.worker.failure]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model that some worker serves or has served."""

    name: str
    """Contains the version if there is one: `name:version`."""
    pool: str
    """The pool of its jobs."""
    card: dict[str, Any]
    """vLLM's own entry of /v1/models."""
    served_name: str = ""
    """The name without the version; empty if there is no version."""
    version: str = ""
    weight: int = 100
    """The version's share of the requests that name none (model_names.py)."""


WORKER = TypeAdapter(WorkerInfo)
MODEL = TypeAdapter(ModelInfo)


def unknown_card(name: str) -> dict[str, Any]:
    """The entry of /v1/models for a model that no worker has announced yet."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "flotilla"}


def model_records(
    pool: str, cards: list[dict[str, Any]], version: str, weight: int
) -> dict[str, str]:
    """The registry's entries for the models of a pool, as JSON.

    With a version the engine lists each name alone and as `name:version`; an adapter only by its
    name.
    """
    if not version:
        return {card["id"]: json.dumps({"pool": pool, "card": card}) for card in cards}
    records = {}
    suffix = f":{version}"
    ids = {card["id"] for card in cards}
    for card in cards:
        name = card["id"]
        if name + suffix in ids:
            continue  # the card with the version has all of it
        served_name = name.removesuffix(suffix)
        record = {
            "pool": pool,
            "card": card,
            "served_name": served_name,
            "version": version,
            "weight": weight,
        }
        records[served_name + suffix] = json.dumps(record)
    return records


def age_s(worker: WorkerInfo, left_ms: int | Exception) -> float:
    """The age of an announcement that expires after `left_ms`; 0 where that is unknown."""
    if not isinstance(left_ms, int) or left_ms < 0:
        return 0.0
    loads = worker.state is WorkerState.STARTING
    return max(0.0, (LOADING_EXPIRY_S if loads else EXPIRY_S) - left_ms / 1000)


def load_json(raw: bytes) -> Any:
    """JSON without NaN and infinity, which may not stand in answers to clients."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not a JSON number")

    return json.loads(raw, parse_constant=refuse)
