"""A worker's life: load the model, serve, drain, end.

First SIGTERM (or Ctrl-C): claim nothing more, hand the running jobs over to workers that have
room, finish the others within the drain deadline, release the rest. Second signal: release them at
once. A dead engine: release them and exit with code 1, so that a supervisor starts a new process.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import secrets
import socket
import time
from collections.abc import Coroutine
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry

from shared.fleet.pool import Pool
from shared.job.states import WorkerState
from shared.platform import logs, tracing
from shared.platform.metrics.worker import WorkerMetrics
from shared.platform.settings import SettingsError
from shared.platform.tasks import end
from shared.store.health import Health
from shared.store.redis.fleet_registry import Registry
from shared.store.redis.heartbeat_thread import Heartbeat
from shared.store.redis.job_queue import JobQueue
from shared.store.servers import Servers
from shared.store.upkeep import Reaper
from worker.core.adapters import Adapters
from worker.core.control_subscriptions import ControlSubscriptions
from worker.core.desired_state import DesiredState
from worker.core.drain import Drain
from worker.core.engine_call import model_cards
from worker.core.health import HealthServer
from worker.core.lease import LeaseRenewer
from worker.core.loop import WorkerLoop
from worker.core.membership import Membership
from worker.core.operations import Operations
from worker.core.plugin import AroundRuns
from worker.core.registration import Registration, WorkerIdTaken
from worker.core.stalls import Stalled
from worker.core.start_limit import StartTimeout, start_limit
from worker.engines.interface import Engine
from worker.worker_settings import WorkerSettings

log = logging.getLogger("flotilla.worker")

_CHECK_S = 1.0  # between two looks at an engine that reports nothing


class EngineDied(Exception):
    """The engine can't be used any more."""


class Worker:
    """One engine's worker. `run` returns the exit code."""

    def __init__(
        self,
        settings: WorkerSettings,
        pool: Pool,
        engine: Engine,
        registry: CollectorRegistry = REGISTRY,
        around: AroundRuns | None = None,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._id = settings.worker_id or f"w-{socket.gethostname()[:32]}-{secrets.token_hex(3)}"
        servers = Servers(settings.redis_url, settings.shards)
        self._queue = queue = JobQueue(servers)
        queue.share_rules, queue.placement = settings.fair_shares.rules, settings.placement.rules
        self._pool = pool
        self._around = around
        self._metrics = WorkerMetrics(registry)
        self._loop: WorkerLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stop_signals = 0
        # Done at the first signal, or with the error of the first task that ends by itself.
        self._ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._forced = asyncio.Event()
        self._heartbeat = Heartbeat(settings.redis_url, settings.shards, self._id)
        self._health = HealthServer(settings.worker_host, settings.worker_port, self._status)
        self._registration = Registration(
            Registry(servers.primary), self._id, pool, engine, self._metrics, self._health
        )

    async def run(self) -> int:
        """Serve until `stop` or the engine's end; returns the exit code. Raises SettingsError."""
        registration = self._registration
        self._health.start()
        try:
            await registration.reserve_id()
        except WorkerIdTaken as error:
            raise SettingsError(str(error)) from error
        await registration.announce_loading()
        logs.bind_process(worker=self._id)
        log.info("%s: loading %s", self._id, _model_description(self._pool))
        began, failure = time.monotonic(), ""
        try:
            with start_limit(self._pool.startup_timeout_s) as limit:
                await self._unless_stopped(limit.wait(self._engine.start()))
            if self._stop_signals:
                return 0
            loop = await self._prepare()
            await self._serve(loop, time.monotonic() - began)
            return await self._drain(loop)
        except EngineDied:
            log.error("the engine is dead")
            failure = "its engine died"
            return await self._end_at_once("engine_died", blame=True)
        except (StartTimeout, Stalled) as error:
            log.error("%s: this worker ends", error)
            self.stop()
            if self._loop is not None:
                self._loop.drain()
                await self._drain(self._loop)
            return 1
        except WorkerIdTaken as error:
            log.error("%s", error)
            return await self._end_at_once("id_taken", blame=False)
        except SettingsError:
            raise
        except Exception as error:
            log.exception("the worker failed")
            failure = f"{type(error).__name__}, see its log" if self.serving else ""
            await end(self._tasks)
            return 1
        finally:
            await registration.leave(failure)
            self._heartbeat.stop()
            await self._queue.close()
            await self._queue.servers.close()
            self._engine.close()

    def drain(self) -> None:
        """Drain, as for the first signal. Does nothing if the worker drains already."""
        if not self._stop_signals:
            self.stop()

    def stop(self) -> None:
        """Drain, as for a signal; called again, end at once."""
        self._stop_signals += 1
        if not self._ending.done():
            self._ending.set_result(None)
        if self._stop_signals > 1:
            self._forced.set()

    async def _prepare(self) -> WorkerLoop:
        """What the worker needs to claim jobs; nothing is claimed yet."""
        engine, registration, settings = self._engine, self._registration, self._settings
        gc.collect()
        gc.freeze()  # exclude what loading created from later collections
        gc.set_threshold(10_000)  # by default 700: 3 % of the CPU of a short job
        # Not before the engine is loaded, which may fork.
        tracing.set_up(settings.otlp_traces_endpoint, "worker", self._id)
        registration.loaded(await model_cards(engine))
        self._metrics.info.labels(self._id, registration.pool, engine.kind).set(1)
        # Loading may have taken longer than the id was reserved for.
        await registration.reserve_id()
        # Before the worker is ready: clients may ask for the model as soon as it is.
        await registration.register_models()
        watermark, around = settings.kv_high_watermark, self._around
        member, metrics = self._member, self._metrics
        return WorkerLoop(member, engine, metrics, kv_high_watermark=watermark, around=around)

    async def _serve(self, loop: WorkerLoop, loading_s: float) -> None:
        """Claim and run jobs until `stop`. Raises EngineDied, Stalled and WorkerIdTaken."""
        engine, registration = self._engine, self._registration
        member, servers = self._member, self._queue.servers
        adapters = Adapters(member, engine, loop, registration)
        operations = Operations(member, loop, adapters, self.drain)
        desired = DesiredState(member, adapters, operations)
        await adapters.refresh()
        await desired.follow_if_possible()
        self._loop = loop
        on_silent = self._metrics.silent_subscriptions.inc
        subscriptions = ControlSubscriptions(servers, self._id, loop.control, on_silent)
        self._spawn(subscriptions.run())
        await subscriptions.detectable()
        self._heartbeat.start()
        claiming, watching = self._spawn(loop.run()), self._spawn(self._watch(loop))
        registration.started(loop)
        for work in (
            loop.publisher.run(),
            LeaseRenewer(loop.lease, self._progressing).run(),
            registration.run_heartbeats(),
            operations.run(),
            desired.run(),
            Health(servers).run(),
            Reaper(self._queue, self._settings.lease_s, self._metrics.reaper).run(),
        ):
            self._spawn(work)
        log.info(
            "%s: serving %s on %s, %d slots, loaded in %.0f s",
            self._id,
            ", ".join(card["id"] for card in registration.models),
            engine.kind,
            engine.capacity.max_num_seqs,
            loading_s,
            extra={"pool": registration.pool},
        )
        await self._ending
        loop.drain()
        await asyncio.wait({claiming, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not claiming.done():
            await watching  # it has failed
        await subscriptions.catch_up()  # jobs that were assigned before the slots were withdrawn

    @property
    def _member(self) -> Membership:
        pool, lease_s = self._registration.pool, self._settings.lease_s
        return Membership(self._queue, pool, self._id, lease_s)

    async def _watch(self, loop: WorkerLoop) -> None:
        """Raise EngineDied if the engine is dead or hangs, Stalled if a part stands still."""
        while True:
            if self._engine_failed():
                raise EngineDied
            if stall := loop.stall():
                raise Stalled(stall)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_S):
                    await loop.engine_lost.wait()

    def _progressing(self) -> bool:
        loop = self._loop
        return loop is None or loop.progress.progressing(self._settings.engine_stall_s)

    @property
    def serving(self) -> bool:
        """The model is loaded."""
        return self._loop is not None

    def _engine_failed(self) -> bool:
        hangs = not self._engine.dead and not self._progressing()
        if hangs:
            log.error("the engine hangs: it has work and makes no step")
        return hangs or self._engine.dead

    async def _drain(self, loop: WorkerLoop) -> int:
        await self._registration.announce_if_possible()
        drain = Drain(self._member, loop)
        await drain.run(self._settings.drain_deadline_s, self._forced, self._engine_failed)
        await end(self._tasks)
        log.info("%s: ended", self._id)
        return 0

    async def _end_at_once(self, reason: str, *, blame: bool) -> int:
        if self._loop is not None:
            self._loop.drain()
            await self._loop.releases.all(reason, blame=blame)
        await end(self._tasks)
        return 1

    def _status(self) -> tuple[WorkerState, str]:
        if self._stop_signals:
            return WorkerState.DRAINING, "was stopped, by a signal or by an operator"
        if self._loop is None:
            return WorkerState.STARTING, "loads its model"
        decision = self._loop.slots.decision
        return decision.state, decision.reason

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for `work`; `stop` ends the wait and cancels the work."""
        task = asyncio.ensure_future(work)
        await asyncio.wait({task, self._ending}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        else:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that runs until the worker ends: if it ends before, so does the worker.

        `asyncio.TaskGroup` would cancel the publisher with the others, and it cancels once, which
        is not enough (`end` in shared/platform/tasks.py).
        """
        task = asyncio.create_task(work, name=getattr(work, "__qualname__", None))
        task.add_done_callback(self._on_end)
        self._tasks.append(task)
        return task

    def _on_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if not self._ending.done():
            ended = RuntimeError(f"the task {task.get_name()} has ended")
            self._ending.set_exception(EngineDied() if self._engine.dead else error or ended)


def _model_description(pool: Pool) -> str:
    return "the simulated engine" if pool.engine == "simulated" else pool.model or "the demo model"
