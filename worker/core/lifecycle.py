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
from asyncio import FIRST_COMPLETED
from collections.abc import Coroutine
from functools import partial
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry

from shared.fleet.pool import Pool
from shared.job.states import WorkerState
from shared.platform import logs, tracing
from shared.platform.metrics.worker import WorkerMetrics
from shared.platform.settings import SettingsError
from shared.platform.tasks import end
from shared.store import keys
from shared.store.fleet_registry import Registry
from shared.store.health import Health
from shared.store.queue import Queue
from shared.store.servers import Servers
from shared.store.subscription import Subscription
from worker.core.adapters import Adapters
from worker.core.desired_state import DesiredState
from worker.core.engine_call import model_cards
from worker.core.health import HealthServer
from worker.core.heartbeat import Heartbeat
from worker.core.loop import WorkerLoop
from worker.core.membership import Membership
from worker.core.operations import Operations
from worker.core.registration import Registration, WorkerIdTaken
from worker.core.start_limit import StartTimeout, start_limit
from worker.engines.interface import Engine
from worker.worker_settings import WorkerSettings

log = logging.getLogger("flotilla.worker")

_CHECK_S = 1.0  # between two looks at an engine that reports nothing
_DRAIN_CHECK_S = 0.25
_MOVE_AGAIN_S = 0.5
"""Between two looks at the room of other workers."""
_SUBSCRIBE_S = 5.0


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
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._id = settings.worker_id or f"w-{socket.gethostname()[:32]}-{secrets.token_hex(3)}"
        servers = Servers(settings.redis_url, settings.shards)
        self._queue = Queue(
            servers, share_rules=settings.fair_shares.rules, placement=settings.placement.rules
        )
        self._pool = pool
        self._metrics = WorkerMetrics(registry)
        self._loop: WorkerLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stop_signals = 0
        # Done at the first signal, or with the error of the first task that ends by itself.
        self._ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._forced = asyncio.Event()
        self._heartbeat = Heartbeat(settings.redis_url, settings.shards, self._id, settings.lease_s)
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
        except StartTimeout as error:
            log.error("%s: this worker ends", error)
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
        return WorkerLoop(
            self._member, engine, self._metrics, kv_high_watermark=settings.kv_high_watermark
        )

    async def _serve(self, loop: WorkerLoop, loading_s: float) -> None:
        """Claim and run jobs until `stop`. Raises EngineDied and WorkerIdTaken."""
        engine, registration = self._engine, self._registration
        member, servers = self._member, self._queue.servers
        adapters = Adapters(engine, loop, registration)
        operations = Operations(member, loop, adapters, self.drain)
        desired = DesiredState(member, adapters, operations)
        await adapters.refresh()
        await desired.follow_if_possible()
        self._loop = loop
        await self._subscribe(loop)
        self._heartbeat.start()
        watching = self._spawn(self._watch(loop))
        self._spawn(loop.run())
        registration.started(loop)
        for work in (
            loop.publisher.run(),
            registration.run_heartbeats(),
            operations.run(),
            desired.run(),
            Health(servers).run(),
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
        if watching.done():
            watching.result()  # it has failed

    async def _subscribe(self, loop: WorkerLoop) -> None:
        """Hear the control channel: a worker without a subscription counts as lost. Returns when it
        is there, or after a while if Redis does not answer."""
        servers, on_silent = self._queue.servers, self._metrics.silent_subscriptions.inc
        subscriptions = [
            Subscription(
                servers,
                shards[0],
                keys.control_channel(self._id),
                partial(loop.control.on_message, shards),
                on_silent=on_silent,
            )
            for shards in servers.groups
        ]
        for subscription in subscriptions:
            self._spawn(subscription.run())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SUBSCRIBE_S):
                for subscription in subscriptions:
                    await subscription.connected.wait()

    @property
    def _member(self) -> Membership:
        return Membership(self._queue, self._registration.pool, self._id)

    async def _watch(self, loop: WorkerLoop) -> None:
        """Raise EngineDied if the engine is dead or hangs."""
        while True:
            if self._engine_failed():
                raise EngineDied
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
        await loop.withdraw()
        if loop.runs:
            log.info(
                "draining %d jobs, at most %.0f s", len(loop.runs), self._settings.drain_deadline_s
            )
        emptying = asyncio.ensure_future(self._empty(loop))
        stop = asyncio.ensure_future(self._forced.wait())
        until, failed = time.monotonic() + self._settings.drain_deadline_s, False
        try:
            while not (emptying.done() or stop.done() or failed or time.monotonic() > until):
                wait_s = min(_DRAIN_CHECK_S, max(0.0, until - time.monotonic()))
                await asyncio.wait({stop, emptying}, timeout=wait_s, return_when=FIRST_COMPLETED)
                failed = self._engine_failed()
        finally:
            await end([stop, emptying])
        await loop.give_back_all("engine_died" if failed else "drained", blame=failed)
        await end(self._tasks)
        log.info("%s: ended", self._id)
        return 0

    async def _empty(self, loop: WorkerLoop) -> None:
        """Hand over the jobs that others have room for, until none is left."""
        while loop.runs:
            await loop.hand_over.move_jobs(loop.sequences)
            await loop.runs.wait_until_empty(_MOVE_AGAIN_S)

    async def _end_at_once(self, reason: str, *, blame: bool) -> int:
        if self._loop is not None:
            self._loop.drain()
            await self._loop.give_back_all(reason, blame=blame)
        await end(self._tasks)
        return 1

    def _status(self) -> tuple[WorkerState, str]:
        if self._stop_signals:
            return WorkerState.DRAINING, "was stopped, by a signal or by an operator"
        if self._loop is None:
            return WorkerState.STARTING, "loads its model"
        return self._loop.room.state

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
