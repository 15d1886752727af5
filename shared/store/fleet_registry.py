"""The registry of workers and models: entries that expire, and models that stay known."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from shared.fleet.registry import (
    EXPIRY_S,
    MODEL,
    WORKER,
    Heartbeat,
    ModelInfo,
    WorkerInfo,
    age_s,
    load_json,
    model_records,
    without_failed,
)
from shared.platform.malformed import MalformedValues
from shared.store import keys


class Registry:
    """The fleet's workers and models in Redis."""

    def __init__(self, redis: Any, malformed: MalformedValues | None = None) -> None:
        """`malformed` counts the entries that can't be read; None: they are logged only."""
        self._redis = redis
        self._malformed = malformed or MalformedValues()

    async def reserve(self, worker_id: str, process: str, expiry_s: float = EXPIRY_S) -> bool:
        """Reserve a worker's id for a process, or keep it; False if another process has it.

        `process` is a random name. Two workers with one id would take each other's jobs.
        """
        key = keys.fleet("life", worker_id)
        expiry_ms = int(expiry_s * 1000)
        while True:
            held = await self._redis.set(key, process, nx=True, get=True, px=expiry_ms)
            if held is None:
                return True
            if held != process.encode():
                return False
            if await self._redis.pexpire(key, expiry_ms):
                return True  # else it has expired since

    async def reserved_s(self, worker_id: str) -> float:
        """How long the id stays reserved unless its process extends that, as a live one does."""
        left_ms: int = await self._redis.pttl(keys.fleet("life", worker_id))
        return max(0, left_ms) / 1000

    async def announce(self, worker: WorkerInfo, expiry_s: float = EXPIRY_S) -> None:
        """A heartbeat."""
        values = {k: json.dumps(v) for k, v in asdict(worker).items()}
        pipe = self._redis.pipeline(transaction=True)
        pipe.hset(keys.fleet("worker", worker.id), mapping=values)
        pipe.pexpire(keys.fleet("worker", worker.id), int(expiry_s * 1000))
        pipe.sadd(keys.fleet("workers"), worker.id)
        await pipe.execute()

    async def leave(self, worker_id: str, process: str = "") -> None:
        """The worker ends in good order; `process` is what its id was reserved for."""
        if process and await self._redis.get(keys.fleet("life", worker_id)) != process.encode():
            return
        pipe = self._redis.pipeline(transaction=True)
        pipe.delete(keys.fleet("worker", worker_id), keys.fleet("life", worker_id))
        pipe.srem(keys.fleet("workers"), worker_id)
        await pipe.execute()

    async def release_id(self, worker_id: str, process: str) -> None:
        """Another process may take the id; the worker's last announcement stays until it expires.

        `process` is what the id was reserved for.
        """
        key = keys.fleet("life", worker_id)
        if await self._redis.get(key) == process.encode():
            await self._redis.delete(key)

    async def register_models(
        self, pool: str, cards: list[dict[str, Any]], version: str = "", weight: int = 100
    ) -> None:
        """Make the models of a pool known; names are those of the cards."""
        await self._redis.hset(
            keys.fleet("models"), mapping=model_records(pool, cards, version, weight)
        )

    async def declare_models(
        self, pool: str, cards: list[dict[str, Any]], version: str = "", weight: int = 100
    ) -> None:
        """Make models known that no worker has announced yet; never overwrites a worker's entry."""
        for name, record in model_records(pool, cards, version, weight).items():
            await self._redis.hsetnx(keys.fleet("models"), name, record)

    async def forget_models(self, names: Collection[str]) -> None:
        """These models are not known any more, until a worker announces them again."""
        if not names:
            return
        pipe = self._redis.pipeline(transaction=True)
        pipe.hdel(keys.fleet("models"), *names)
        pipe.hdel(keys.fleet("unused_models"), *names)
        await pipe.execute()

    async def unused_for(self, names: Collection[str], seconds: float) -> list[str]:
        """Those of `names` that each call has had for so long. They are the models out of use."""
        now_s = int(await self._redis.time())
        since = await self._redis.hgetall(keys.fleet("unused_models"))
        raw_names = {name.encode() for name in names}
        if used := since.keys() - raw_names:
            await self._redis.hdel(keys.fleet("unused_models"), *used)
        for name in raw_names - since.keys():
            await self._redis.hset(keys.fleet("unused_models"), name, now_s)
        return [
            name
            for name in names
            if (at := since.get(name.encode())) is not None and now_s - float(at) >= seconds
        ]

    async def workers(self) -> list[WorkerInfo]:
        """The workers whose announcement has not expired, by id. Malformed entries are skipped."""
        return without_failed(await self.heartbeats())

    async def known_workers(self) -> int:
        """How many workers are listed, with expired ones that are not removed yet."""
        return int(await self._redis.scard(keys.fleet("workers")))

    async def heartbeats(self) -> list[Heartbeat]:
        """As `workers`, with the age of each announcement, and with workers that have failed."""
        ids = sorted(each.decode() for each in await self._redis.smembers(keys.fleet("workers")))
        pipe = self._redis.pipeline(transaction=False)
        for worker_id in ids:
            pipe.hgetall(keys.fleet("worker", worker_id))
            pipe.pttl(keys.fleet("worker", worker_id))
        found, gone = [], []
        replies = iter(await pipe.execute())
        for worker_id, raw, left_ms in zip(ids, replies, replies, strict=True):
            if not raw:
                gone.append(worker_id)
            elif (worker := self._worker(worker_id, raw)) is not None:
                found.append(Heartbeat(worker, age_s(worker, left_ms)))
        if gone:
            await self._redis.srem(keys.fleet("workers"), *gone)
        return found

    async def models(self) -> dict[str, ModelInfo]:
        """Every model ever registered, by name. Malformed entries are skipped."""
        models = {}
        found = (await self._redis.hgetall(keys.fleet("models"))).items()
        for name, record in sorted((name.decode(), record) for name, record in found):
            try:
                models[name] = MODEL.validate_python({"name": name, **load_json(record)})
            except (ValueError, TypeError) as error:
                self._malformed.skip("model", repr(name[:100]), error)
        return models

    def _worker(self, worker_id: str, raw: dict[bytes, bytes]) -> WorkerInfo | None:
        """None if it can't be read: another version may have written it."""
        try:
            return WORKER.validate_python({k.decode(): load_json(v) for k, v in raw.items()})
        except (ValueError, TypeError) as error:
            self._malformed.skip("worker", repr(worker_id[:100]), error)
            return None
