"""A worker's life: load the model, register, serve, drain, end.

First SIGTERM (or Ctrl-C): claim nothing more, hand the running jobs over to workers that have
room, finish the others within the drain deadline, release the rest. Second signal: release them at
once. A dead engine: release them and exit with code 1, so that a supervisor starts a new process.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import logging
import secrets
import socket
import time
from asyncio import FIRST_COMPLETED
from functools import partial

from prometheus_client import REGISTRY, CollectorRegistry

from shared.fleet.pool import Pool
from shared.fleet.registry import LOADING_EXPIRY_S
from shared.job.states import WorkerState
from shared.platform import logs, tracing
from shared.platform.metrics.worker import WorkerMetrics
from shared.platform.settings import SettingsError
from shared.platform.tasks import end
from shared.store import keys
from shared.store.health import Health
from shared.store.queue import Queue
from shared.store.servers import Servers
from shared.store.subscription import Subscription
from worker.core.control import ControlChannel, Operations, model_cards
from worker.core.heartbeat import Heartbeat
from worker.core.jobs import Jobs
from worker.core.registration import Registration, WorkerIdTaken, serve_health
from worker.engines.interface import Engine
from worker.worker_settings import WorkerSettings

log = logging.getLogger("flotilla.worker")

_CHECK_S = 1.0
"""Between two looks at the engine."""
_CHECKS_PER_STALL = 4
_MOVE_AGAIN_S = 0.5
"""Between two looks at the room of other workers."""
_SUBSCRIBE_S = 5.0
_BLOCKED_S = 10.0
"""A start that still runs so long after its limit blocks the event loop: then the process ends
without it."""
_LONGEST_START_S = 1e9


class EngineDied(Exception):
    """The engine can't be used any more."""


class StartTimeout(Exception):
    """The engine's start took longer than FLOTILLA_STARTUP_TIMEOUT_S."""


class Worker:
    """One engine's worker. `run` returns the exit code."""

    def __init__(
        self,
        settings: WorkerSettings,
        pool: Pool,
        engine: Engine,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self.id = settings.worker_id or f"w-{socket.gethostname()[:32]}-{secrets.token_hex(3)}"
        self.pool = pool
        self.engine = engine
        self.metrics = WorkerMetrics(registry)
        self.queue = Queue(
            Servers(settings.redis_url, settings.shards),
            share_rules=settings.fair_shares.rules,
            placement=settings.placement.rules,
        )
        self.jobs: Jobs | None = None
        """None until the model is loaded."""
        self.registration = Registration(self)
        self._settings = settings
        self._heartbeat = Heartbeat(settings.redis_url, settings.shards, self.id, settings.lease_s)
        self._tasks: list[asyncio.Task[None]] = []
        """They run until the worker ends: if one ends before, so does the worker."""
        self._stopped = asyncio.Event()
        self._forced = asyncio.Event()

    def stop(self) -> None:
        """Drain, as for a signal; called again, end at once."""
        if self._stopped.is_set():
            self._forced.set()
        self._stopped.set()

    def drain(self) -> None:
        """Drain. Does nothing if the worker drains already."""
        self._stopped.set()

    def status(self) -> tuple[WorkerState, str]:
        """The worker's state and the reason for it, a short sentence. Safe to call from another
        thread."""
        if self._stopped.is_set():
            return WorkerState.DRAINING, "was stopped, by a signal or by an operator"
        if self.jobs is None:
            return WorkerState.STARTING, "loads its model"
        return self.jobs.room.state

    async def run(self) -> int:
        """Serve until `stop` or the engine's end; returns the exit code. Raises SettingsError."""
        registration, settings = self.registration, self._settings
        serve_health(self, settings.worker_host, settings.worker_port)
        try:
            await registration.reserve_id()
        except WorkerIdTaken as error:
            raise SettingsError(str(error)) from error
        await registration.announce_if_possible(LOADING_EXPIRY_S)
        logs.bind_process(worker=self.id)
        failure = ""
        try:
            if await self._load():
                jobs = await self._prepare()
                await self._serve(jobs)
            return 0
        except EngineDied:
            log.error("the engine is dead")
            failure = "its engine died"
            await self._end("engine_died", blame=True)
        except WorkerIdTaken as error:
            log.error("%s", error)
            await self._end("id_taken")
        except StartTimeout as error:
            log.error("%s: this worker ends", error)
        except SettingsError:
            raise
        except Exception as error:
            log.exception("the worker failed")
            failure = f"{type(error).__name__}, see its log" if self.jobs else ""
            await end(self._tasks)
        finally:
            await registration.leave(failure)
            self._heartbeat.stop()
            await self.queue.close()
            await self.queue.servers.close()
            self.engine.close()
        return 1

    async def _load(self) -> bool:
        """Load the model; False if the worker was stopped before. Raises StartTimeout."""
        log.info("%s: loading %s", self.id, _model_description(self.pool))
        began, limit_s = time.monotonic(), min(self.pool.startup_timeout_s, _LONGEST_START_S)
        faulthandler.dump_traceback_later(limit_s + _BLOCKED_S, exit=True)
        loading = asyncio.ensure_future(self.engine.start())
        stopping = asyncio.ensure_future(self._stopped.wait())
        try:
            both = {loading, stopping}
            await asyncio.wait(both, timeout=limit_s, return_when=FIRST_COMPLETED)
            if loading.done():
                loading.result()
                log.info("loaded in %.0f s", time.monotonic() - began)
            elif not stopping.done():
                raise StartTimeout(
                    f"the model did not load within {limit_s:g} s (FLOTILLA_STARTUP_TIMEOUT_S)"
                )
        finally:
            faulthandler.cancel_dump_traceback_later()
            loading.cancel()
            stopping.cancel()
        return not self._stopped.is_set()

    async def _prepare(self) -> Jobs:
        """What the worker needs to claim jobs; nothing is claimed yet."""
        registration, settings = self.registration, self._settings
        gc.collect()
        gc.freeze()  # exclude what loading created from later collections
        gc.set_threshold(10_000)  # by default 700: 3 % of the CPU of a short job
        # Not before the engine is loaded, which may fork.
        tracing.set_up(settings.otlp_traces_endpoint, "worker", self.id)
        registration.loaded(await model_cards(self.engine))
        self.metrics.info.labels(self.id, registration.pool, self.engine.kind).set(1)
        # Loading may have taken longer than the id was reserved for.
        await registration.reserve_id()
        return Jobs(
            self.queue, registration.pool, self.id, self.engine, self.metrics,
            kv_high_watermark=settings.kv_high_watermark,
        )  # fmt: skip

    async def _serve(self, jobs: Jobs) -> None:
        """Claim and run jobs until `stop`, then drain. Raises EngineDied and WorkerIdTaken."""
        channel = ControlChannel(jobs)
        operations = Operations(self, jobs, channel)
        # Before the worker is ready: clients may ask for its models as soon as it is.
        await operations.prepare()
        self.jobs = jobs
        await self._subscribe(channel)
        self._heartbeat.start()
        self.registration.started()
        watching = asyncio.create_task(self._watch(jobs), name="watch")
        works = (
            jobs.run(),
            self.registration.run_heartbeats(),
            operations.run(),
            Health(self.queue).run(),
        )
        tasks = (asyncio.create_task(work, name=getattr(work, "__name__", "")) for work in works)
        self._tasks += [watching, *tasks]
        log.info(
            "%s: serving %s on %s, %d slots",
            self.id,
            ", ".join(card["id"] for card in self.registration.models),
            self.engine.kind,
            self.engine.capacity.max_num_seqs,
            extra={"pool": jobs.pool},
        )
        stopping = asyncio.create_task(self._stopped.wait())
        await asyncio.wait({stopping, *self._tasks}, return_when=FIRST_COMPLETED)
        stopping.cancel()
        for task in self._tasks:
            if task.done():
                error = None if task.cancelled() else task.exception()
                error = error or RuntimeError(f"the task {task.get_name()} has ended")
                raise EngineDied if self.engine.dead else error
        await self._drain(jobs, watching)

    async def _subscribe(self, channel: ControlChannel) -> None:
        """Hear the control channel: a worker without a subscription counts as lost. Returns when it
        is there, or after a while if Redis does not answer."""
        servers, on_silent = self.queue.servers, self.metrics.silent_subscriptions.inc
        subscriptions = [
            Subscription(
                servers,
                shards[0],
                keys.control_channel(self.id),
                partial(channel.on_message, shards),
                on_silent=on_silent,
            )
            for shards in servers.groups
        ]
        self._tasks += [asyncio.create_task(each.run(), name="control") for each in subscriptions]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SUBSCRIBE_S):
                for subscription in subscriptions:
                    await subscription.connected.wait()

    async def _watch(self, jobs: Jobs) -> None:
        """Raise EngineDied once the engine is dead, or hangs: it has work, makes no step for
        `engine_stall_s`, and does not carry out what an operator has asked for.

        Looks are counted, not seconds: a worker that stood still itself blames nothing on it.
        """
        stall_s, engine = self._settings.engine_stall_s, self.engine
        check_s = min(_CHECK_S, stall_s / _CHECKS_PER_STALL)
        n_steps, stalled_s = 0, 0.0
        while not engine.dead:
            idle = jobs.operator_calls or not engine.load().unfinished
            if idle or jobs.publisher.n_steps != n_steps:
                n_steps, stalled_s = jobs.publisher.n_steps, 0.0
            elif stalled_s >= stall_s:
                log.error("the engine hangs: it has work and makes no step")
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(check_s):
                    await jobs.engine_lost.wait()
            stalled_s += check_s
        raise EngineDied

    async def _drain(self, jobs: Jobs, watching: asyncio.Task[None]) -> None:
        """Hand jobs over, and let others end, until none is left, or the deadline, or a second
        signal. What is left then is given back."""
        deadline_s = self._settings.drain_deadline_s
        jobs.room.draining = True
        await self.registration.announce_if_possible()
        await jobs.drain()
        if jobs.runs:
            log.info("draining %d jobs, at most %.0f s", len(jobs.runs), deadline_s)
        emptying = asyncio.ensure_future(self._empty(jobs))
        forced = asyncio.ensure_future(self._forced.wait())
        await asyncio.wait(
            {emptying, forced, watching}, timeout=deadline_s, return_when=FIRST_COMPLETED
        )
        await end([emptying, forced])
        failed = watching.done()
        await self._end("engine_died" if failed else "drained", blame=failed)
        log.info("%s: ended", self.id)

    async def _empty(self, jobs: Jobs) -> None:
        """Hand over the jobs that others have room for, until none is left."""
        while jobs.runs or await jobs.take_back():
            await jobs.hand_over()
            await jobs.wait_until_idle(_MOVE_AGAIN_S)

    async def _end(self, reason: str, *, blame: bool = False) -> None:
        """Give back what jobs there are, and stop."""
        if self.jobs is not None:
            await self.jobs.release_all(reason, blame=blame)
        await end(self._tasks)


def _model_description(pool: Pool) -> str:
    return "the simulated engine" if pool.engine == "simulated" else pool.model or "the demo model"
