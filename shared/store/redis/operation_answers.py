"""The workers' answers to an operator call, on their way to the gateway that has sent it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter

from shared.fleet.worker_answer import WorkerAnswer
from shared.platform.malformed import MalformedValues
from shared.store.redis import keys

_KEPT_S = 600
_ANSWER = TypeAdapter(WorkerAnswer)


class OperationAnswers:
    """Reads and writes them. The methods raise StoreError."""

    def __init__(self, redis: Any, malformed: MalformedValues | None = None) -> None:
        """`malformed` counts what can't be read; None: it is logged only."""
        self._redis = redis
        self._malformed = malformed or MalformedValues()

    async def write(self, operation: str, worker: str, answer: WorkerAnswer) -> None:
        """Store a worker's answer; it is kept for ten minutes."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.hset(keys.operation(operation), worker, json.dumps(asdict(answer)))
        pipe.expire(keys.operation(operation), _KEPT_S)
        await pipe.execute()

    async def read(self, operation: str) -> dict[str, WorkerAnswer]:
        """All answers so far, by worker. Malformed ones are skipped."""
        found = {}
        for worker, raw in (await self._redis.hgetall(keys.operation(operation))).items():
            try:
                found[worker.decode()] = _ANSWER.validate_json(raw)
            except ValueError as error:
                self._malformed.skip("answer", repr(worker[:100]), error)
        return found
