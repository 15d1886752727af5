"""Starts and stops the processes of one `flotilla up` in the right order.

Redis starts first, then the gateway, the maintenance process and the workers of all pools together.
At the end the workers stop first (they drain), then the gateway, from which clients still read, and
the maintenance process, then Redis. service.py keeps one process running; scaler.py carries out the
autoscaler's decisions.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gateway.launcher import devices, log_files, ports, run_file
from gateway.launcher.child import Command
from gateway.launcher.console import Console
from gateway.launcher.fleet_redis import CannotStartError, FleetRedis
from gateway.launcher.http_probe import HttpProbe
from gateway.launcher.launcher_settings import LauncherSettings
from gateway.launcher.running_services import RunningServices
from gateway.launcher.scaler import Scaler
from gateway.launcher.service import GaveUpError, Service
from gateway.launcher.stalled_workers import StalledWorkers
from gateway.launcher.stop_signals import StopSignals
from gateway.launcher.welcome import PoolLine, how_many, welcome
from gateway.launcher.worker_children import Workers
from gateway.maintenance import liveness_file
from shared.fleet.pool import Pool
from shared.platform.free_memory import free_memory
from shared.platform.settings import to_environment
from shared.platform.tasks import end
from shared.store.queue import Queue
from shared.store.servers import Servers, connect

EXIT_FAILED = 1
EXIT_FORCED = 130
# A worker ends its jobs within drain_deadline_s; then its engine needs time to stop.
_WORKER_MARGIN_S = 15.0
# The gateway ends open responses within grace_s; then the process needs time to stop.
_GATEWAY_MARGIN_S = 7.0
_REDIS_GRACE_S = 30.0

_EXPECTED = (CannotStartError, GaveUpError, OSError)


@dataclass(frozen=True, slots=True)
class Commands:
    """The command lines of the programs."""

    gateway: tuple[str, ...] = (sys.executable, "-m", "gateway")
    worker: tuple[str, ...] = (sys.executable, "-m", "worker")
    maintenance: tuple[str, ...] = (sys.executable, "-m", "gateway.maintenance")


class Supervisor:
    """The processes of one `flotilla up`."""

    def __init__(
        self,
        settings: LauncherSettings,
        pools: Sequence[Pool],
        commands: Commands,
        folder: Path,
        lock: int,
        console: Console,
    ) -> None:
        """`pools`: where least and most workers differ, the autoscaler decides how many run."""
        self._settings = settings
        self._pools = {pool.name: pool for pool in pools}
        self._commands = commands
        self._folder = folder
        self._console = console
        self._gateway_port = settings.port or ports.free_port(settings.host)
        self._logs = log_files.begin(folder / "logs")
        self._signals = StopSignals()
        self._running = RunningServices(self._say)
        self._at_end = contextlib.ExitStack()
        self._redis = FleetRedis(settings, folder, lock, self._service, self._say)
        self._gateway = self._service(
            "gateway", self._gateway_command, lambda: self._http.is_ready(self._gateway_url)
        )
        self._maintenance = self._service(
            "maintenance", self._maintenance_command, self._maintenance_is_alive
        )
        self._maintenance_started_at = 0.0
        self._workers = self._make_workers()
        self._http = HttpProbe()

    async def run(self) -> int:
        """Serve until a signal, or until a process can't be kept running; the exit status."""
        with self._signals.handled(), self._at_end:
            serving = asyncio.create_task(self._serve(), name="serve")
            stop = asyncio.create_task(self._signals.stop.wait(), name="stop")
            await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            problem = serving.exception() if serving.done() else None
            if problem is not None:
                self._say(f"{problem}; stopping")
            serving.cancel()
            await asyncio.wait({serving})
            await self._shut_down()
            await self._http.close()
        if problem is not None and not isinstance(problem, _EXPECTED):
            raise problem
        if self._signals.force.is_set():
            self._say("killed; nothing is left running")
            return EXIT_FORCED
        self._say("stopped; nothing is left running")
        return 0 if problem is None else EXIT_FAILED

    async def _serve(self) -> None:
        """Start everything and serve. Ends only by raising GaveUpError or CannotStartError."""
        pools = self._pools.values()
        self._say(f"starting Redis, the gateway and {how_many(pool.range for pool in pools)}")
        await self._redis.find(self._at_end)
        if self._redis.service is not None:
            self._running.start(self._redis.service)
            await self._running.until_ready([self._redis.service])
        await self._redis.check()
        await self._redis.forget_models(pools)
        self._at_end.enter_context(
            run_file.written(self._folder, redis_url=self._redis.url, gateway_url=self._gateway_url)
        )
        self._running.start(self._gateway)
        # The fleet works without the maintenance process, unless that decides how many workers run.
        scales = any(_is_scaled(pool) for pool in pools)
        self._running.start(
            self._maintenance, None if scales else self._run_if_possible(self._maintenance)
        )
        async with self._scalers() as scalers:
            first = [
                scalers[name].add()
                for name, pool in self._pools.items()
                for _ in range(pool.range[0])
            ]
            deciding = [self._maintenance] if scales else []
            await self._running.until_ready([self._gateway, *deciding, *first])
            self._console.print(await self._welcome())
            await self._keep_serving(scalers)

    def _make_workers(self) -> dict[str, Workers]:
        """The workers of each pool, by its name; they share the ports and the GPUs."""
        shares = devices.allot(tuple(self._pools.values()), to_environment("up"))
        held_ports = ports.HeldPorts()
        engines = sum(pool.range[1] for pool in self._pools.values() if pool.engine == "vllm")
        memory = self._settings.worker_memory_bytes or _shared_memory(engines)
        several = bool(self._settings.pools)

        def make(pool: Pool) -> Workers:
            joined = {"pool": pool.name} if several else {}

            def command(**changes: str | int) -> Command:
                changes["worker_memory_bytes"] = memory
                return self._command("worker", self._commands.worker, **joined, **changes)

            name = pool.name if len(self._pools) > 1 else ""
            return Workers(
                self._settings,
                self._worker_service,
                command,
                shares[pool.name],
                pool=name,
                ports=held_ports,
            )

        return {name: make(pool) for name, pool in self._pools.items()}

    @contextlib.asynccontextmanager
    async def _scalers(self) -> AsyncIterator[dict[str, Scaler]]:
        settings = self._settings
        async with Servers(self._redis.url, settings.shards) as servers:
            queue = Queue(servers)
            yield {
                name: Scaler(
                    workers,
                    name,
                    queue,
                    start=self._running.start,
                    grace_s=settings.drain_deadline_s + _WORKER_MARGIN_S,
                    say=self._say,
                )
                for name, workers in self._workers.items()
            }

    async def _keep_serving(self, scalers: Mapping[str, Scaler]) -> None:
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._running.failed.wait(), name="failing"),
            asyncio.create_task(self._restart_stalled(), name="stalled workers"),
            asyncio.create_task(log_files.keep_small(self._folder), name="logs"),
        ]
        for name, pool in self._pools.items():
            if _is_scaled(pool):
                tasks.append(asyncio.create_task(scalers[name].run(), name=f"scaler of {name}"))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(tasks)
        self._running.raise_failure()
        done.pop().result()  # a bug in one of these tasks

    async def _restart_stalled(self) -> None:
        settings = self._settings
        drain_s = settings.drain_deadline_s + _WORKER_MARGIN_S
        stalled = StalledWorkers(settings.worker_restart_after_s, drain_s)
        redis = connect(self._redis.url)
        try:
            await stalled.run(redis, self._workers.values())
        finally:
            await redis.aclose()

    # --- starting ---

    def _service(
        self, name: str, command: Callable[[], Command], is_ready: Callable[[], Awaitable[bool]]
    ) -> Service:
        log = self._logs / f"{name}.log"
        return Service(name, command, is_ready, log=log, console=self._console)

    def _worker_service(
        self, name: str, command: Callable[[], Command], url: Callable[[], str]
    ) -> Service:
        return self._service(name, command, lambda: self._http.is_ready(url()))

    def _gateway_command(self) -> Command:
        command = self._command("gateway", self._commands.gateway, port=self._gateway_port)
        # At SIGTERM it would wait for responses that can't come: Redis and the workers end too.
        return replace(command, when_orphaned=signal.SIGHUP)

    def _command(self, process: str, argv: tuple[str, ...], **changes: str | int) -> Command:
        changes = {"redis_url": self._redis.url, **changes}
        if process in ("gateway", "maintenance") and not self._settings.storage_url:
            changes["storage_url"] = str((self._folder / "files").resolve())
        environment = to_environment(process, self._settings, **changes)
        return Command(argv, environment | {"PYTHONUNBUFFERED": "1"})

    def _maintenance_command(self) -> Command:
        self._maintenance_started_at = time.time()
        return self._command("maintenance", self._commands.maintenance)

    async def _run_if_possible(self, service: Service) -> None:
        try:
            await service.run()
        except (GaveUpError, OSError) as error:
            self._say(f"{error}; the other processes keep running")

    # --- the state of the processes ---

    @property
    def _gateway_url(self) -> str:
        return ports.url_of(self._settings.host, self._gateway_port)

    async def _maintenance_is_alive(self) -> bool:
        settings = self._settings.model_copy(update={"redis_url": self._redis.url})
        return liveness_file.touched_since(settings, self._maintenance_started_at)

    async def _welcome(self) -> str:
        pools, names = self._pools.values(), next(iter(self._pools.values())).served_names
        model = await self._http.first_model(self._gateway_url, self._settings, names)
        return welcome(
            url=self._gateway_url,
            model=model or names[0],
            simulated=all(pool.engine == "simulated" for pool in pools),
            pools=[PoolLine(pool.name, pool.served_names, pool.range) for pool in pools],
            logs=self._logs,
            with_key=bool(self._settings.api_keys or self._settings.api_keys_file),
        )

    # --- stopping ---

    async def _shut_down(self) -> None:
        draining = asyncio.create_task(self._drain(), name="drain")
        forced = asyncio.create_task(self._signals.force.wait(), name="force")
        await asyncio.wait({draining, forced}, return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()
        draining.cancel()
        await self._running.kill(draining)

    async def _drain(self) -> None:
        """Stop everything in order. From now on a signal forces the end, as a second one does."""
        self._signals.stop.set()
        workers = [each for of in self._workers.values() for each in of.services.values()]
        if workers:
            deadline_s = self._settings.drain_deadline_s
            self._say(f"draining for up to {deadline_s:g} s; Ctrl-C again to force")
            await asyncio.gather(*(w.stop(deadline_s + _WORKER_MARGIN_S) for w in workers))
        rest = [
            service for service in (self._gateway, self._maintenance) if service in self._running
        ]
        grace_s = self._settings.grace_s + _GATEWAY_MARGIN_S
        await asyncio.gather(*(service.stop(grace_s) for service in rest))
        if self._redis.service is not None:
            await self._redis.service.stop(_REDIS_GRACE_S)

    def _say(self, line: str) -> None:
        self._console.show("flotilla", line)


def _is_scaled(pool: Pool) -> bool:
    return pool.range[0] < pool.range[1]


def _shared_memory(engines: int) -> int:
    """What each of these engines may take of the memory: a tenth is left to the other processes."""
    return free_memory().bytes * 9 // 10 // max(1, engines)
