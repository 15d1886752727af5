"""A worker's life: load the model, serve, drain, end.

First SIGTERM (or Ctrl-C): claim nothing more, hand the running jobs over to workers that have
room, finish the others within the drain deadline, release the rest. Second signal: release them at
once. A dead engine: release them and exit with code 1; the supervisor of the process starts a new
one.
"""

from __future__ import annotations

import asyncio
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
from shared.platform.metrics import WorkerMetrics
from shared.platform.settings import SettingsError
from shared.platform.tasks import end
from shared.store.redis.desired_pools import DesiredPools
from shared.store.redis.fleet_registry import Registry
from shared.store.redis.format_version import FormatMonitor
from shared.store.redis.heartbeat_thread import Heartbeat
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.operation_answers import OperationAnswers
from shared.store.redis.reaper import Reaper
from shared.store.redis.servers import Servers
from worker.core.adapters import Adapters
from worker.core.control_subscriptions import ControlSubscriptions
from worker.core.desired_state import DesiredState
from worker.core.drain import Drain, release_all
from worker.core.engine_call import model_cards
from worker.core.executor import Executor
from worker.core.health import HealthServer
from worker.core.lease import LeaseRenewer
from worker.core.operations import Operations
from worker.core.plugin import AroundRuns
from worker.core.registration import Registration, WorkerIdTaken
from worker.core.stalls import Stalled
from worker.core.start_limit import StartTimeout, start_limit
from worker.engines.interface import Engine
from worker.worker_settings import WorkerSettings

log = logging.getLogger("flotilla.worker")

_CHECK_S = 0.25


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
        servers = Servers(settings.redis_url, settings.shard_redis_urls)
        self._queue = JobQueue(servers, shards=settings.shards)
        self._pool = pool
        self._around = around
        self._metrics = WorkerMetrics(registry)
        self._executor: Executor | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stop_signals = 0
        self._stopped = asyncio.Event()
        self._forced = asyncio.Event()
        self._heartbeat = Heartbeat(settings.server_urls, self._id)
        self._health = HealthServer(settings.worker_host, settings.worker_port, self._status)
        self._registration = Registration(
            Registry(servers.primary),
            engine,
            self._metrics,
            worker_id=self._id,
            # A guess until the engine has loaded: a worker that loads counts for its pool.
            pool=self._pool.name,
            version=self._pool.version,
            weight=self._pool.weight,
            status=self._status,
            metrics_port=lambda: self._health.port,
        )

    async def run(self) -> int:
        """Serve until `stop` or the engine's end; returns the exit code. Raises SettingsError."""
        registration = self._registration
        try:
            self._health.start()
        except OSError as error:
            address = f"{self._settings.worker_host}:{self._settings.worker_port}"
            raise SettingsError(
                f"can't listen on {address} ({error.strerror}): choose another FLOTILLA_WORKER_PORT"
            ) from error
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
            await self._serve(time.monotonic() - began)
        except StartTimeout as error:
            log.error("%s: this worker ends", error)
            return 1
        except EngineDied:
            log.error("the engine is dead")
            failure = "its engine died"
            return await self._end_at_once("engine_died", blame=True)
        except Stalled as error:
            log.error("%s: this worker ends", error)
            self.stop()
            assert self._executor is not None
            self._executor.drain()
            await self._drain()
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
        else:
            return await self._drain()
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
        self._stopped.set()
        if self._stop_signals > 1:
            self._forced.set()

    async def _serve(self, loading_s: float) -> None:
        """Claim and run jobs until `stop`. Raises EngineDied and WorkerIdTaken."""
        engine, registration = self._engine, self._registration
        gc.collect()
        gc.freeze()  # exclude what loading created from later collections
        # Not before the engine is loaded, which may fork.
        tracing.set_up(self._settings.otlp_traces_endpoint, "worker", self._id)
        registration.models = await model_cards(engine)
        registration.pool = self._pool.name_with(registration.models[0]["id"])
        self._metrics.info.labels(self._id, registration.pool, engine.kind).set(1)
        # Loading may have taken longer than the id was reserved for.
        await registration.reserve_id()
        # Before the worker is ready: clients may ask for the model as soon as it is.
        await registration.register_models()
        executor = self._make_executor(registration.pool)
        operations, desired = await self._prepare_operations(executor)
        self._executor = registration.executor = executor
        on_silent = self._metrics.silent_subscriptions.inc
        subscriptions = ControlSubscriptions(
            self._queue.servers, self._id, executor.control, on_silent
        )
        self._spawn(subscriptions.run())
        await subscriptions.detectable()
        self._heartbeat.start()
        claiming = self._spawn(executor.run())
        registration.started()
        self._spawn(executor.publisher.run())
        self._spawn(LeaseRenewer(executor.lease, self._progressing).run())
        self._spawn(registration.run_heartbeats())
        self._spawn(operations.run())
        self._spawn(desired.run())
        servers = self._queue.servers
        monitor = FormatMonitor([servers.primary, *servers.all], self._settings.shards)
        self._spawn(monitor.run())
        self._spawn(Reaper(self._queue, self._settings.lease_s, self._metrics.reaper).run())
        log.info(
            "%s: serving %s on %s, %d slots, loaded in %.0f s",
            self._id,
            ", ".join(card["id"] for card in registration.models),
            engine.kind,
            engine.capacity.max_num_seqs,
            loading_s,
            extra={"pool": registration.pool},
        )
        while not self._stop_signals:
            self._check()
            events = self._stopped, executor.engine_lost
            waits = [asyncio.ensure_future(event.wait()) for event in events]
            await asyncio.wait(waits, timeout=_CHECK_S, return_when=asyncio.FIRST_COMPLETED)
            await end(waits)
        executor.drain()
        await claiming
        await subscriptions.catch_up()  # jobs that were assigned before the slots were withdrawn

    def _make_executor(self, pool: str) -> Executor:
        settings = self._settings
        return Executor(
            self._queue,
            self._engine,
            self._metrics,
            pool=pool,
            worker_id=self._id,
            lease_s=settings.lease_s,
            kv_high_watermark=settings.kv_high_watermark,
            around=self._around,
        )

    async def _prepare_operations(self, executor: Executor) -> tuple[Operations, DesiredState]:
        """Bring the worker into the state that operators have asked for of its pool.

        Returns what follows their further calls.
        """
        primary, pool = self._queue.servers.primary, self._registration.pool
        adapters = Adapters(self._engine)
        operations = Operations(
            self._id, self._engine, executor, adapters, OperationAnswers(primary), self.drain
        )
        executor.control.operate = operations.receive
        desired = DesiredState(
            self._queue, DesiredPools(primary), pool, adapters, executor, operations
        )

        async def announce(cards: list[dict[str, Any]]) -> None:
            await self._registration.set_models(cards)
            await desired.read_adapter_queues_if_possible()

        adapters.on_change = announce
        await adapters.refresh()
        await desired.follow_if_possible()
        return operations, desired

    def _progressing(self) -> bool:
        most_s = self._settings.engine_stall_s
        return self._executor is None or self._executor.progressing(most_s)

    @property
    def serving(self) -> bool:
        """The model is loaded."""
        return self._executor is not None

    def _engine_failed(self) -> bool:
        if self._engine.dead:
            return True
        if self._progressing():
            return False
        log.error("the engine hangs: it has work and makes no step")
        return True

    def _check(self) -> None:
        """Raise EngineDied if the engine is dead or hangs, Stalled if a loop stands still, and an
        error if a task has ended."""
        if self._engine_failed():
            raise EngineDied
        if self._executor is not None and (stall := self._executor.stall()):
            raise Stalled(stall)
        for task in self._tasks:
            if task.done():
                task.result()
                raise RuntimeError(f"the task {task.get_name()} has ended")

    async def _drain(self) -> int:
        assert self._executor is not None
        await self._registration.announce_if_possible()
        drain = Drain(self._queue, self._executor, self._registration.pool, self._id)
        await drain.run(self._settings.drain_deadline_s, self._forced, self._engine_failed)
        await end(self._tasks)
        log.info("%s: ended", self._id)
        return 0

    async def _end_at_once(self, reason: str, *, blame: bool) -> int:
        if self._executor is not None:
            self._executor.drain()
            await release_all(self._executor, reason, blame=blame)
        await end(self._tasks)
        return 1

    def _status(self) -> tuple[WorkerState, str]:
        if self._stop_signals:
            return WorkerState.DRAINING, "was stopped, by a signal or by an operator"
        if self._executor is None:
            return WorkerState.STARTING, "loads its model"
        return self._executor.decision.state, self._executor.decision.reason

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for `work`; `stop` ends the wait and cancels the work."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._stopped.wait())
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if task.done():
            task.result()
        else:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=getattr(work, "__qualname__", None))
        self._tasks.append(task)
        return task


def _model_description(pool: Pool) -> str:
    if pool.engine == "simulated":
        return "the simulated engine"
    return pool.model or "the demo model"
