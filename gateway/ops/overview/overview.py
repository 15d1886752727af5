"""Makes the overview: reads Redis, and keeps what rates need."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any

from gateway.core.context import Gateway
from gateway.ops.overview import reading
from gateway.ops.overview.models import FleetOverview, FleetState
from gateway.ops.overview.problems import find_problems
from gateway.ops.overview.rates import WorkerRates
from gateway.ops.overview.reading import Reading
from gateway.ops.overview.verdict import ProblemLog, verdict
from shared.store.errors import StoreError

_SIMULATED = "simulated"
_READ_S = 2.0
"""A reading that takes longer counts as failed."""


class Overview:
    """The overview of one gateway. Call `take` about once a second."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._shown = {"id": gateway.id, "version": version("flotilla")}
        self._fleet = gateway.fleet
        self._reading: Reading | None = None
        self._failing_since_s: float | None = None
        self._worker_rates = WorkerRates()
        self._problems = ProblemLog()

    async def take(self) -> dict[str, Any]:
        """The overview now. If Redis does not answer: what was read last, and the error."""
        error = await self._read()
        state = self._state(error)
        problems = self._problems.update(find_problems(state), state.at_s)
        engines = sorted({worker.engine for worker in state.workers if worker.engine})
        found = FleetOverview(
            at=state.at_s,
            gateway=self._shown,
            engines=engines,
            simulated=any(engine.startswith(_SIMULATED) for engine in engines),
            verdict=verdict(state, problems, self._problems.recovered),
            rates=self._token_rates(),
            pools=state.pools,
            workers=state.workers,
            redis=state.redis,
        )
        return found.model_dump(mode="json")

    async def _read(self) -> str:
        """Read Redis and add to what is kept; why that failed, empty if it did not."""
        try:
            async with asyncio.timeout(_READ_S):
                self._reading = await reading.read(self._gateway.queue, self._fleet)
        except (StoreError, TimeoutError) as error:
            if self._failing_since_s is None:
                self._failing_since_s = self._fleet.now_s()
            return str(error) or type(error).__name__
        self._failing_since_s = None
        self._worker_rates.update(self._fleet.workers)
        return ""

    def _state(self, error: str) -> FleetState:
        fleet, read = self._fleet, self._reading
        lanes, tenants = (read.lanes, read.tenants) if read else ((), {})
        return FleetState(
            at_s=fleet.now_s(),
            pools=reading.pools(fleet, lanes, tenants, self._max_depth),
            workers=reading.workers(fleet, self._worker_rates.output),
            redis=reading.redis_overview(self._gateway.health, error, self._failing_since_s),
            gateway_problems=self._own_problems(),
        )

    def _max_depth(self, pool: str) -> int:
        """How many jobs may wait in one lane of a pool, in all shards."""
        return self._gateway.submitter.max_depth(pool) * self._gateway.queue.shards

    def _token_rates(self) -> dict[str, float | None]:
        rates = self._worker_rates
        known = bool(rates.output)
        return {
            "prompt_tokens": round(sum(rates.prompt.values()), 1) if known else None,
            "output_tokens": round(sum(rates.output.values()), 1) if known else None,
        }

    def _own_problems(self) -> dict[str, str]:
        tasks = self._gateway.tasks.ended.items()
        ended = [f"the task {name} has ended: {why}" for name, why in tasks]
        return {
            "gateway_tasks": "; ".join(ended),
            "gateway_format": self._gateway.health.format,
            "gateway_fleet": self._fleet.problem,
            "redis_full": self._gateway.health.full,
        }
