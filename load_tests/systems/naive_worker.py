"""The worker of `naive`: `python -m load_tests.systems.naive_worker REDIS_URL`.

The engine's settings are read from the environment.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import uvloop
from redis.asyncio import Redis
from vllm.entrypoints.generate.base.protocol import DeltaMessage
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
    ChatCompletionResponseStreamChoice,
    ChatCompletionStreamResponse,
)

from load_tests.systems.direct import generation_of
from load_tests.systems.engine import MODEL
from load_tests.systems.naive_gateway import DONE, MAX_CONNECTIONS, QUEUE, channel
from shared.platform.settings import load_settings
from worker.engines.simulated.engine import SimulatedEngine

_GROUP = "workers"
_BLOCK_MS = 1000
_CLAIM = 64
_LIMIT = 64


class NaiveWorker:
    """Claims as many jobs as it has free slots; runs each in a task."""

    def __init__(self, redis_url: str) -> None:
        settings = load_settings()
        self._redis = Redis.from_url(redis_url, max_connections=MAX_CONNECTIONS)
        self._engine = SimulatedEngine(settings)
        self._free = settings.sim_max_num_seqs
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Claim and run jobs until the process ends."""
        await self._engine.start()
        await self._redis.xgroup_create(QUEUE, _GROUP, id="0", mkstream=True)
        while True:
            count = max(1, min(self._free, _CLAIM))
            claimed: Any = await self._redis.xreadgroup(
                _GROUP, "worker", {QUEUE: ">"}, count=count, block=_BLOCK_MS
            )
            for _, entries in claimed or []:
                for entry_id, fields in entries:
                    self._free -= 1
                    job = self._job(entry_id, fields[b"id"].decode(), fields[b"body"])
                    task = asyncio.create_task(job)
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)

    async def _job(self, entry_id: bytes, job_id: str, body: bytes) -> None:
        redis = self._redis
        chat_request = ChatCompletionRequest.model_validate_json(body)
        prompt, limit = str(chat_request.messages), chat_request.max_tokens or _LIMIT
        generation = generation_of(prompt, limit, stream=True)
        answer_id, created = f"chatcmpl-{job_id}", int(time.time())

        async def publish(message: DeltaMessage, reason: str | None = None) -> None:
            choice = ChatCompletionResponseStreamChoice(
                index=0, delta=message, finish_reason=reason
            )
            chunk = ChatCompletionStreamResponse(
                id=answer_id, created=created, choices=[choice], model=MODEL
            )
            await redis.publish(channel(job_id), chunk.model_dump_json(exclude_unset=True))

        self._engine.submit(generation)
        first = True
        while deltas := await generation.next_deltas():
            if first:
                await publish(DeltaMessage(role="assistant", content=""))
                first = False
            for delta in deltas:
                await publish(DeltaMessage(content=delta.text), delta.finish_reason)
        await redis.publish(channel(job_id), DONE)
        await redis.xack(QUEUE, _GROUP, entry_id)
        await redis.xdel(QUEUE, entry_id)
        await redis.hset(f"naive:state:{job_id}", "state", "completed")
        self._free += 1


async def _main() -> None:
    await NaiveWorker(sys.argv[1]).run()


if __name__ == "__main__":
    uvloop.run(_main())
