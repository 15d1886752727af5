"""Makes the overview: reads Redis, and keeps what rates, percentiles and charts need."""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import version
from typing import Any

from gateway.core.context import Gateway
from gateway.ops.overview import reading
from gateway.ops.overview.history import STEP_S, History
from gateway.ops.overview.models import FleetOverview, FleetState, Latency
from gateway.ops.overview.percentiles import HistogramWindow
from gateway.ops.overview.problems import find_problems
from gateway.ops.overview.rates import JobRates, WorkerRates, job_counters
from gateway.ops.overview.reading import Reading
from gateway.ops.overview.tenant_sample import TenantSample
from gateway.ops.overview.verdict import ProblemLog, verdict
from shared.store.interface import StoreError

_SIMULATED = "simulated"
_READ_S = 2.0
"""A reading that takes longer counts as failed."""
_WINDOW_S = 300.0
"""The time that percentiles are of."""


class Overview:
    """The overview of one gateway. Call `take` about once a second."""

    def __init__(self, gateway: Gateway) -> None:
        metrics, tenants = gateway.metrics, gateway.keys.tenants
        only = tenants[0].name if len(tenants) == 1 and not gateway.keys.stored else ""
        self._gateway = gateway
        self._shown = {"id": gateway.id, "version": version("flotilla")}
        self._fleet = gateway.fleet
        self._metrics = metrics
        self._sample = TenantSample(gateway.queue, only)
        self._reading: Reading | None = None
        self._failing_since_s: float | None = None
        self._job_rates = JobRates()
        self._worker_rates = WorkerRates(len(metrics.ttft.counts))
        self._history = History(("waiting", "running", "output_tokens", "submitted"))
        self._problems = ProblemLog()
        seconds, token_seconds = metrics.ttft.bounds, metrics.itl.bounds
        self._windows = {
            "ttft_s": HistogramWindow(seconds, _WINDOW_S, STEP_S),
            "itl_s": HistogramWindow(token_seconds, _WINDOW_S, STEP_S),
            "queue_wait_s": HistogramWindow(seconds, _WINDOW_S, STEP_S),
            "e2e_s": HistogramWindow(seconds, _WINDOW_S, STEP_S),
        }

    async def take(self) -> dict[str, Any]:
        """The overview now. If Redis does not answer: what was read last, and the error."""
        error = await self._read()
        state, rates = self._state(error), {**self._job_rates.per_s(), **self._token_rates()}
        if not error:
            self._history.add(
                state.at_s,
                {
                    "waiting": sum(pool.waiting for pool in state.pools),
                    "running": sum(pool.running for pool in state.pools),
                    "output_tokens": rates["output_tokens"],
                    "submitted": rates["submitted"],
                },
            )
        problems = self._problems.update(find_problems(state), state.at_s)
        engines = sorted({worker.engine for worker in state.workers if worker.engine})
        found = FleetOverview(
            at=state.at_s,
            gateway=self._shown,
            engines=engines,
            simulated=any(engine.startswith(_SIMULATED) for engine in engines),
            verdict=verdict(state, problems, self._problems.recovered),
            rates=rates,
            pools=state.pools,
            workers=state.workers,
            latency=self._latency(state.at_s),
            history=self._history.to_object(),
            dead_letters=state.dead_letters,
            redis=state.redis,
        )
        return found.model_dump(mode="json")

    async def _read(self) -> str:
        """Read Redis and add to what is kept; why that failed, empty if it did not."""
        try:
            async with asyncio.timeout(_READ_S):
                self._reading = read = await reading.read(
                    self._gateway.queue, self._fleet, self._sample
                )
        except (StoreError, TimeoutError) as error:
            if self._failing_since_s is None:
                self._failing_since_s = self._fleet.now_s()
            return str(error) or type(error).__name__
        self._failing_since_s = None
        clock = time.monotonic()
        self._job_rates.add(clock, job_counters(read.total, read.unfinished))
        self._worker_rates.update(self._fleet.workers)
        answers = [each.counts for each in self._metrics.answer_seconds.values()]
        counts = {
            "ttft_s": self._metrics.ttft.counts,
            "itl_s": self._metrics.itl.counts,
            "queue_wait_s": tuple(self._worker_rates.waits),
            "e2e_s": tuple(map(sum, zip(*answers, strict=True))),
        }
        for name, window in self._windows.items():
            window.add(clock, counts[name])
        return ""

    def _state(self, error: str) -> FleetState:
        fleet, read = self._fleet, self._reading
        lanes, tenants = (read.lanes, read.tenants) if read else ((), {})
        return FleetState(
            at_s=fleet.now_s(),
            pools=reading.pools(fleet, lanes, tenants, self._max_depth),
            workers=reading.workers(fleet, self._worker_rates.output),
            dead_letters=read.dead_letters if read else 0,
            newest_letter_s=read.newest_letter_s if read else None,
            recent=self._job_rates.increases(),
            redis=reading.redis_overview(self._gateway.eviction, error, self._failing_since_s),
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
            "gateway_format": self._gateway.format.problem,
            "gateway_fleet": self._fleet.problem,
            "redis_full": self._gateway.admission.memory.problem,
        }

    def _latency(self, at_s: float) -> Latency:
        begins = [window.since_s for window in self._windows.values()]
        known = [begin for begin in begins if begin is not None]
        since = at_s - (time.monotonic() - min(known)) if len(known) == len(begins) else None
        values = {name: window.quantiles() for name, window in self._windows.items()}
        return Latency(since=since, **values)
