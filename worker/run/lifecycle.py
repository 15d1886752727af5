"""A worker's life: load the model, serve, drain, end; heartbeats, and what ends it.

First SIGTERM (or Ctrl-C): claim nothing more, finish what is in hand within the drain deadline,
hand the rest back. Second: hand back at once. A dead engine: hand back, leave with exit code 1;
whoever supervises the worker starts a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Coroutine
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry

from shared.fleet.registry import EXPIRY_S, HEARTBEAT_S, Registry, WorkerInfo, pool_name
from shared.fleet.servers import Servers
from shared.platform import logs
from shared.platform.metrics import WorkerMetrics
from shared.platform.redis_client import RedisError
from shared.platform.settings import Settings, SettingsError
from shared.platform.subscription import Subscription
from shared.platform.tasks import end
from shared.protocol import keys
from shared.protocol.states import WorkerState
from shared.queue.job_queue import JobQueue
from shared.queue.reaper import Reaper
from worker.claim.lease import LeaseKeeper
from worker.engines.protocol import Engine
from worker.run.asgi import Exchange
from worker.run.health import HealthServer
from worker.run.loop import Loop

log = logging.getLogger("flotilla.worker")

_VERSION = version("flotilla")  # looking it up reads files

_ENGINE_CHECK_S = 0.25
# A model may take this long to load before its worker looks gone.
_LOADING_EXPIRY_S = 3600.0


class EngineDied(Exception):
    """The engine can't be used any more."""


class WorkerIdTaken(Exception):
    """Another process is the worker with this id."""


class Worker:
    """One engine's worker. `run` returns the exit code."""

    def __init__(
        self, settings: Settings, engine: Engine, registry: CollectorRegistry = REGISTRY
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._id = settings.worker_id or f"w-{socket.gethostname()[:32]}-{secrets.token_hex(3)}"
        # A guess until the engine says what it serves: a worker that loads counts for its pool.
        self._process = secrets.token_hex(8)
        """Tells this process from another worker with the same id."""
        self._pool = settings.pool or pool_name(settings.announced_model())
        self._start_s: float | None = None
        self._models: list[dict[str, Any]] = []
        servers = Servers(settings.redis_url, settings.shard_redis_urls)
        self._queue = JobQueue(servers, shards=settings.shards)
        self._registry = Registry(servers.primary)
        self._metrics = WorkerMetrics(registry)
        self._loop: Loop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stops = 0
        self._stopped = asyncio.Event()
        self._forced = asyncio.Event()
        self._health = HealthServer(settings.worker_host, settings.worker_port, self._status)

    async def run(self) -> int:
        """Serve until `stop` or the engine's end; returns the exit code. Raises SettingsError."""
        try:
            self._health.start()
        except OSError as error:
            where = f"{self._settings.worker_host}:{self._settings.worker_port}"
            raise SettingsError(
                f"can't listen on {where} ({error.strerror}): choose another FLOTILLA_WORKER_PORT"
            ) from error
        try:
            await self._reserve_id()
        except WorkerIdTaken as error:
            raise SettingsError(str(error)) from error
        await self._quietly(self._announce(_LOADING_EXPIRY_S))
        logs.bind_process(worker=self._id)
        log.info("%s loads %s", self._id, _what_loads(self._settings))
        began = time.monotonic()
        try:
            await self._unless_stopped(self._engine.start())
            if self._stops:
                return 0
            await self._serve(time.monotonic() - began)
        except EngineDied:
            log.error("the engine is dead")
            return await self._end_at_once("engine_died", blame=True)
        except WorkerIdTaken as error:
            log.error("%s", error)
            return await self._end_at_once("id_taken", blame=False)
        except SettingsError:
            raise
        except Exception:
            log.exception("%s failed", self._id)
            return 1
        else:
            return await self._drain()
        finally:
            await self._quietly(self._registry.leave(self._id, self._process))
            self._engine.close()

    def stop(self) -> None:
        """What a signal does: drain; called again, end at once."""
        self._stops += 1
        self._stopped.set()
        if self._stops > 1:
            self._forced.set()

    async def _serve(self, loading_s: float) -> None:
        """Claim and run jobs until `stop`. Raises EngineDied."""
        settings, engine = self._settings, self._engine
        gc.collect()
        gc.freeze()  # what loading made stays; later collections need not look at it
        self._models = await self._model_cards()
        self._pool = settings.pool or pool_name(self._models[0]["id"])
        self._metrics.info.labels(self._id, self._pool, engine.kind).set(1)
        # It may have taken longer to load than its id was reserved for.
        await self._reserve_id()
        # Before readiness is told: whoever hears of it may ask for the model at once.
        await self._quietly(self._registry.register_models(self._pool, self._models))
        loop = self._loop = Loop(
            self._queue,
            settings.server_urls,
            engine,
            self._metrics,
            pool=self._pool,
            worker_id=self._id,
            lease_s=settings.lease_s,
            kv_high_watermark=settings.kv_high_watermark,
        )
        keeper = LeaseKeeper(loop.lease, lambda: loop.progressing(settings.engine_stall_s))
        channel = keys.control_channel(self._id)
        controls = [
            Subscription(url, channel, loop.hear, loop.missed) for url in settings.server_urls
        ]
        claiming = self._spawn(loop.run())
        self._start_s = _process_age_s()
        self._spawn(loop.publisher.run())
        self._spawn(keeper.run())
        self._spawn(self._heartbeats())
        for control in controls:
            self._spawn(control.run())
        self._spawn(Reaper(self._queue, settings.lease_s, self._metrics.reaper).run())
        log.info(
            "%s serves %s on %s, %d slots, loaded in %.0f s",
            self._id,
            ", ".join(card["id"] for card in self._models),
            engine.kind,
            engine.capacity.max_num_seqs,
            loading_s,
        )
        while not self._stops:
            self._check(loop)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ENGINE_CHECK_S):
                    await self._stopped.wait()
        loop.drain()
        await claiming
        for control in controls:
            await self._quietly(control.catch_up())  # what was handed over before the offer ended

    def _check(self, loop: Loop) -> None:
        """Raise EngineDied if it has, and what a task of ours has died of."""
        if self._engine.dead:
            raise EngineDied
        if not loop.progressing(self._settings.engine_stall_s):
            log.error("no engine step for %.0f s: it hangs", self._settings.engine_stall_s)
            raise EngineDied
        for task in self._tasks:
            if task.done():
                task.result()

    async def _drain(self) -> int:
        assert self._loop is not None
        loop, deadline_s = self._loop, self._settings.drain_deadline_s
        if loop.runs:
            log.info("draining %d jobs, at most %.0f s", len(loop.runs), deadline_s)
        await self._quietly(self._announce())
        forced = asyncio.ensure_future(self._forced.wait())
        drained = asyncio.ensure_future(loop.finished(deadline_s))
        while not (drained.done() or forced.done() or self._engine.dead):
            await asyncio.wait(
                {forced, drained}, timeout=_ENGINE_CHECK_S, return_when=asyncio.FIRST_COMPLETED
            )
        forced.cancel()
        drained.cancel()
        await self._hand_back("drained", blame=False)
        await end(self._tasks)
        log.info("%s has ended", self._id)
        return 0

    async def _end_at_once(self, reason: str, *, blame: bool) -> int:
        if self._loop is not None:
            self._loop.drain()
            await self._hand_back(reason, blame=blame)
        await end(self._tasks)
        return 1

    async def _reserve_id(self) -> None:
        """Reserve the id; a killed process keeps it for five heartbeats. Raises WorkerIdTaken."""
        left_s = EXPIRY_S
        try:
            while not await self._registry.reserve(self._id, self._process):
                before_s, left_s = left_s, await self._registry.reserved_s(self._id)
                if left_s > before_s:  # the other process is alive and has extended it
                    raise WorkerIdTaken(
                        f"FLOTILLA_WORKER_ID={self._id}: a running worker has this id; "
                        "give each worker its own id, or none"
                    )
                await asyncio.sleep(_ENGINE_CHECK_S)
        except (RedisError, OSError) as error:
            log.warning("id not reserved yet, the next heartbeat does it: %s", error)

    async def _hand_back(self, reason: str, *, blame: bool) -> None:
        assert self._loop is not None
        try:
            async with asyncio.timeout(10):
                for job_id, state in (await self._loop.hand_back(reason, blame=blame)).items():
                    log.warning("%s handed back, now %s", job_id, state)
        except (RedisError, OSError, TimeoutError) as error:
            log.warning("could not hand jobs back, their leases will run out: %s", error)

    # --- what goes on beside the loop ---

    async def _heartbeats(self) -> None:
        while True:
            try:
                if not await self._registry.reserve(self._id, self._process):
                    raise WorkerIdTaken(f"another worker has taken the id {self._id}")
                await self._registry.register_models(self._pool, self._models)
                await self._announce()
                if self._loop is not None:
                    self._loop.offers.repeat()
            except (RedisError, OSError) as error:
                log.warning("no heartbeat: %s", error)
            await asyncio.sleep(HEARTBEAT_S)

    async def _announce(self, expiry_s: float | None = None) -> None:
        state, reason = self._status()
        for each in WorkerState:
            self._metrics.state.labels(each).set(each is state)
        loaded = self._loop is not None
        load = self._engine.load() if loaded else None
        info = WorkerInfo(
            id=self._id,
            pool=self._pool,
            state=state,
            engine=self._engine.kind,
            models=tuple(card["id"] for card in self._models),
            slots=self._engine.capacity.max_num_seqs if loaded else 0,
            running=load.unfinished if load else 0,
            jobs=len(self._loop.runs) if self._loop else 0,
            kv_usage=load.kv_usage if load else 0.0,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=_VERSION,
            metrics_port=self._health.port,
            reason=reason,
            start_s=self._start_s,
            ages=self._loop.ages() if self._loop else (),
            **(asdict(self._loop.done) if self._loop else {}),
        )
        await self._registry.announce(info, **({"expiry_s": expiry_s} if expiry_s else {}))

    def _status(self) -> tuple[WorkerState, str]:
        if self._stops:
            return WorkerState.DRAINING, "was told to end"
        if self._loop is None:
            return WorkerState.STARTING, "loads its model"
        return self._loop.decision.state, self._loop.decision.reason

    async def _model_cards(self) -> list[dict[str, Any]]:
        """What the engine's own /v1/models says, adapters included."""
        exchange = Exchange()
        await exchange.run(self._engine, "GET", "/v1/models")
        cards: list[dict[str, Any]] = json.loads(bytes(exchange.body))["data"]
        return cards

    # --- tasks ---

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for `work`; `stop` ends the wait."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._stopped.wait())
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if task.done():
            task.result()
        else:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    async def _quietly(self, work: Awaitable[None]) -> None:
        """For what the worker can do without: Redis may be away."""
        with contextlib.suppress(RedisError, OSError):
            await work


def _what_loads(settings: Settings) -> str:
    if settings.engine == "simulated":
        return "the simulated engine"
    return settings.model or "the demo model"


def _process_age_s() -> float | None:
    """Since the start of this process, imports included; None where it can't be told."""
    try:
        stat = Path("/proc/self/stat").read_text()
    except OSError:
        return None
    ticks = int(stat.rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
