"""What this gateway knows of the fleet: models, workers, scales; a few seconds old at most."""

from __future__ import annotations

import asyncio
import logging
import time

from gateway.jobs.pace import Pace
from gateway.jobs.wait_estimate import Prospect, Running, prospect, reason
from shared.api.errors import ModelNotFound, NoWorker
from shared.fleet.registry import HEARTBEAT_S, ModelInfo, Registry, WorkerInfo
from shared.fleet.scale_decisions import Scale, ScaleStore
from shared.platform.redis_client import RedisError

log = logging.getLogger("flotilla.fleet")

# Workers speak every so often, too.
_REFRESH_S = HEARTBEAT_S
# A name that is not known makes us look at once, but not for each of a thousand wrong requests.
_LOOK_AGAIN_S = 0.25


class Fleet:
    """A copy of the registry and of the autoscaler's decisions. Start `run` as a task."""

    def __init__(self, registry: Registry, scales: ScaleStore) -> None:
        self.models: dict[str, ModelInfo] = {}
        self.workers: list[WorkerInfo] = []
        self.scales: dict[str, Scale] = {}
        """By pool; none for a pool that no autoscaler looks after."""
        self.history = scales.history
        self._registry = registry
        self._scales = scales
        self._pace = Pace()
        self._redis_ahead_s = 0.0
        self._looked = float("-inf")
        self._looking = asyncio.Lock()

    async def run(self) -> None:
        """Keep the copy fresh; ends by cancellation."""
        while True:
            try:
                await self.refresh()
            except (RedisError, OSError) as error:
                log.debug("fleet not refreshed: %s", error)
            await asyncio.sleep(_REFRESH_S)

    async def refresh(self) -> None:
        """Look now."""
        self._looked = time.monotonic()
        self.models = await self._registry.models()
        self.workers = await self._registry.workers()
        self._pace.look(self.workers, time.monotonic())
        pools = sorted({model.pool for model in self.models.values()})
        now_s, self.scales = await self._scales.read(pools)
        self._redis_ahead_s = now_s - time.monotonic()

    async def model(self, name: str) -> ModelInfo:
        """A model by its name, with or without workers now. Raises ModelNotFound, NoWorker."""
        if name not in self.models:
            await self._look_again()
        if name in self.models:
            return self.models[name]
        if not self.models:
            raise NoWorker("No worker has announced a model yet; try again when one has loaded.")
        known = ", ".join(sorted(self.models)[:10])
        raise ModelNotFound(f"The model {name[:100]!r} does not exist here; these do: {known}.")

    async def _look_again(self) -> None:
        """Look once for all who ask at about the same time, a while after the last look."""
        asked = time.monotonic()
        async with self._looking:
            if self._looked < asked:
                await asyncio.sleep(max(0.0, self._looked + _LOOK_AGAIN_S - asked))
                await self.refresh()

    def now_s(self) -> float:
        """Redis' clock, as far as can be told without asking it."""
        return time.monotonic() + self._redis_ahead_s

    def prospect(self, pool: str, position: int) -> Prospect:
        """What the job at this position in the pool is to be told."""
        running = Running(self._pace.job_s(pool), time.monotonic() - self._looked)
        workers, scale = self.workers_of(pool), self.scales.get(pool)
        return prospect(position, workers, scale, self.now_s(), running)

    def waits_for(self, pool: str) -> str:
        """What keeps the pool's jobs waiting, if no worker is ready; else empty."""
        return reason(self.workers_of(pool), self.scales.get(pool), self.now_s())

    def workers_of(self, pool: str) -> list[WorkerInfo]:
        """The pool's workers that announced themselves lately."""
        return [worker for worker in self.workers if worker.pool == pool]
