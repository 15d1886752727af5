"""Who serves what: workers announce themselves and their models, gateways look them up.

A worker's entry expires when it stops announcing itself. Its models stay known, so that jobs for a
fleet that is scaled to zero can wait.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, NoReturn

from pydantic import TypeAdapter

from shared.job.adapter_queues import adapter_queue
from shared.job.states import WorkerState
from shared.platform.malformed import MalformedValues
from shared.store.redis import keys
from shared.store.redis.redis_client import UNAVAILABLE, Redis

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
    metrics_port: int
    format: int = 1
    """Format version of the worker's release (format_version.py); old ones wrote none."""
    reason: str = ""
    """Why it claims as much as it does, in a sentence."""
    start_s: float | None = None
    """From its start to when it could claim; None until then."""
    # Totals since its start. The difference of two heartbeats is what it did in between.
    finished: int = 0
    """Jobs that left its hands, but for those it handed back."""
    job_seconds: float = 0.0
    """The time it held those, from lease to end."""
    request_bytes: int = 0
    """Their bodies."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    ages: tuple[float, ...] = ()
    """How long it has had the jobs in its hands, the oldest first; of many, a sample."""
    job_ids: tuple[str, ...] = ()
    """Jobs that it runs; of many, the first ones."""
    clock_s: float = 0.0
    """Its own monotonic clock: the difference of two heartbeats is the time between them."""
    output_tokens: int = 0
    """Tokens generated since its start, those of running jobs included."""
    waits: tuple[int, ...] = ()
    """Its histogram of queue waits since its start: jobs in each of the metric's buckets."""
    failure: str = ""
    """Why it has ended; empty while it runs. One that ends in good order deletes its entry."""


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
    """The queue of its jobs; of an adapter, one of the pool's adapter queues."""
    card: dict[str, Any]
    """vLLM's own entry of /v1/models."""
    served_name: str = ""
    """The name without the version; empty if there is no version."""
    version: str = ""
    weight: int = 100
    """The version's share of the requests that name none (model_names.py)."""


_WORKER = TypeAdapter(WorkerInfo)
_MODEL = TypeAdapter(ModelInfo)


def unknown_card(name: str) -> dict[str, Any]:
    """The entry of /v1/models for a model that no worker has announced yet."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "flotilla"}


def _records(pool: str, cards: list[dict[str, Any]], version: str, weight: int) -> dict[str, str]:
    """The registry's entries for the models of a pool, as JSON.

    With a version the engine lists each name alone and as `name:version`; an adapter only by its
    name.
    """
    # The jobs of a LoRA adapter have a queue of their own.
    queues = {
        card["id"]: adapter_queue(pool, card["id"]) if card.get("parent") else pool
        for card in cards
    }
    if not version:
        return {
            card["id"]: json.dumps({"pool": queues[card["id"]], "card": card}) for card in cards
        }
    records = {}
    suffix = f":{version}"
    ids = {card["id"] for card in cards}
    for card in cards:
        name = card["id"]
        if name + suffix in ids:
            continue  # the card with the version says all
        served_name = name.removesuffix(suffix)
        record = {
            "pool": queues[name],
            "card": card,
            "served_name": served_name,
            "version": version,
            "weight": weight,
        }
        records[served_name + suffix] = json.dumps(record)
    return records


def _age_s(worker: WorkerInfo, left_ms: int | Exception) -> float:
    """The age of an announcement that expires after `left_ms`; 0 where that is unknown."""
    if not isinstance(left_ms, int) or left_ms < 0:
        return 0.0
    loads = worker.state is WorkerState.STARTING
    return max(0.0, (LOADING_EXPIRY_S if loads else EXPIRY_S) - left_ms / 1000)


def _loads(raw: bytes) -> Any:
    """JSON without NaN and infinity, which may not stand in answers to clients."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not a JSON number")

    return json.loads(raw, parse_constant=refuse)


class Registry:
    """The fleet's workers and models in Redis."""

    def __init__(self, redis: Redis, malformed: MalformedValues | None = None) -> None:
        """`malformed` counts the entries that can't be read; None: they are logged only."""
        # redis-py types every reply as bytes or str; ours are bytes.
        self._redis: Any = redis
        self._malformed = malformed or MalformedValues()

    async def reserve(self, worker_id: str, process: str, expiry_s: float = EXPIRY_S) -> bool:
        """Reserve a worker's id for a process, or keep it; False if another process has it.

        `process` is a random name. Two workers with one id would overwrite each other's step log.
        """
        key = keys.life(worker_id)
        expiry_ms = int(expiry_s * 1000)
        if await self._redis.set(key, process, nx=True, px=expiry_ms):
            return True
        if await self._redis.get(key) != process.encode():
            return False
        await self._redis.pexpire(key, expiry_ms)
        return True

    async def reserved_s(self, worker_id: str) -> float:
        """How long the id stays reserved unless its process extends that, as a live one does."""
        left_ms: int = await self._redis.pttl(keys.life(worker_id))
        return max(0, left_ms) / 1000

    async def announce(self, worker: WorkerInfo, expiry_s: float = EXPIRY_S) -> None:
        """A heartbeat."""
        values = {k: json.dumps(v) for k, v in asdict(worker).items()}
        pipe = self._redis.pipeline(transaction=True)
        pipe.hset(keys.worker(worker.id), mapping=values)
        pipe.pexpire(keys.worker(worker.id), int(expiry_s * 1000))
        pipe.sadd(keys.WORKERS, worker.id)
        await pipe.execute()

    async def leave(self, worker_id: str, process: str = "") -> None:
        """The worker ends in good order; `process` is what its id was reserved for."""
        if process and await self._redis.get(keys.life(worker_id)) != process.encode():
            return
        pipe = self._redis.pipeline(transaction=True)
        pipe.delete(keys.worker(worker_id), keys.life(worker_id))
        pipe.srem(keys.WORKERS, worker_id)
        await pipe.execute()

    async def release_id(self, worker_id: str, process: str) -> None:
        """Another process may take the id; the worker's last announcement stays until it expires.

        `process` is what the id was reserved for.
        """
        key = keys.life(worker_id)
        if await self._redis.get(key) == process.encode():
            await self._redis.delete(key)

    async def register_models(
        self, pool: str, cards: list[dict[str, Any]], version: str = "", weight: int = 100
    ) -> None:
        """Make the models of a pool known; names are those of the cards."""
        await self._redis.hset(keys.MODELS, mapping=_records(pool, cards, version, weight))

    async def declare_models(
        self, pool: str, names: Iterable[str], version: str = "", weight: int = 100
    ) -> None:
        """Make models known that no worker has announced yet; never overwrites a worker's entry."""
        cards = [unknown_card(name) for name in names]
        await self.declare_cards(pool, cards, version, weight)

    async def declare_cards(
        self, pool: str, cards: list[dict[str, Any]], version: str = "", weight: int = 100
    ) -> None:
        """As `declare_models`, with what is known of each model."""
        for name, record in _records(pool, cards, version, weight).items():
            await self._redis.hsetnx(keys.MODELS, name, record)

    async def forget_queues(self, queues: Collection[str]) -> None:
        """The models with these queues are not served any more: adapters that were unloaded."""
        names = [name for name, model in (await self.models()).items() if model.pool in queues]
        if names:
            await self._redis.hdel(keys.MODELS, *names)

    async def set_default_version(self, served_name: str, version: str) -> None:
        """Send requests that name no version to this one; empty: by the versions' weights again."""
        if version:
            await self._redis.hset(keys.DEFAULT_VERSIONS, served_name, version)
        else:
            await self._redis.hdel(keys.DEFAULT_VERSIONS, served_name)

    async def default_versions(self) -> dict[str, str]:
        """The versions that were set as default, by the models' names."""
        raw = await self._redis.hgetall(keys.DEFAULT_VERSIONS)
        return {
            name.decode(errors="replace"): version.decode(errors="replace")
            for name, version in raw.items()
        }

    async def workers(self) -> list[WorkerInfo]:
        """The workers whose announcement has not expired, by id. Malformed entries are skipped."""
        return without_failed(await self.heartbeats())

    async def heartbeats(self) -> list[Heartbeat]:
        """As `workers`, with the age of each announcement, and with workers that have failed."""
        ids = await self._worker_ids()
        pipe = self._redis.pipeline(transaction=False)
        for worker_id in ids:
            pipe.hgetall(keys.worker(worker_id))
            pipe.pttl(keys.worker(worker_id))
        found, gone = [], []
        replies = iter(await pipe.execute(raise_on_error=False))
        for worker_id, raw, left_ms in zip(ids, replies, replies, strict=True):
            if isinstance(raw, UNAVAILABLE):
                raise raw
            if not raw:
                gone.append(worker_id)
            elif (worker := self._worker(worker_id, raw)) is not None:
                found.append(Heartbeat(worker, _age_s(worker, left_ms)))
        if gone:
            await self._redis.srem(keys.WORKERS, *gone)
        return found

    async def models(self) -> dict[str, ModelInfo]:
        """Every model ever registered, by name. Malformed entries are skipped."""
        models = {}
        for raw_name, record in sorted((await self._redis.hgetall(keys.MODELS)).items()):
            try:
                name = raw_name.decode()
                model = _MODEL.validate_python({"name": name, **_loads(record)})
            except (ValueError, TypeError, RecursionError) as error:
                self._malformed.skip("model", repr(raw_name[:100]), error)
            else:
                models[name] = model
        return models

    async def _worker_ids(self) -> list[str]:
        ids = []
        for raw in sorted(await self._redis.smembers(keys.WORKERS)):
            try:
                ids.append(raw.decode())
            except UnicodeDecodeError as error:
                self._malformed.skip("worker", repr(raw[:100]), error)
        return ids

    def _worker(self, worker_id: str, raw: dict[bytes, bytes] | Exception) -> WorkerInfo | None:
        """None if it can't be read: another version may have written it."""
        try:
            if isinstance(raw, Exception):  # the key is not a hash
                raise TypeError(str(raw))
            return _WORKER.validate_python({k.decode(): _loads(v) for k, v in raw.items()})
        except (ValueError, TypeError, RecursionError) as error:
            self._malformed.skip("worker", repr(worker_id[:100]), error)
            return None
