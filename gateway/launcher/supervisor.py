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
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from gateway.launcher import devices, ports, run_file
from gateway.launcher.child import Command
from gateway.launcher.console import Console
from gateway.launcher.fleet_redis import CannotStartError, FleetRedis
from gateway.launcher.launcher_settings import LauncherSettings
from gateway.launcher.scaler import Scaler
from gateway.launcher.service import GaveUpError, Service
from gateway.launcher.welcome import PoolLine, how_many, progress, welcome
from gateway.launcher.worker_children import Workers
from gateway.maintenance import liveness_file
from shared.fleet.pool import Pool
from shared.platform.settings import to_environment
from shared.platform.tasks import end
from shared.store.redis import redis_client as connections

EXIT_FAILED = 1
EXIT_FORCED = 130
_PROGRESS_S = 10.0
_HTTP_TIMEOUT_S = 2.0
_LIST_TRIES = 50
_LIST_POLL_S = 0.2
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
        self._logs = _fresh_logs(folder / "logs")
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._running: dict[Service, asyncio.Task[None]] = {}
        self._at_end = contextlib.ExitStack()
        self._failed = asyncio.Event()
        self._failure: BaseException | None = None
        self._redis = FleetRedis(settings, folder, lock, self._service, self._say)
        self._gateway = self._service(
            "gateway", self._gateway_command, lambda: self._serves(self._gateway_url)
        )
        self._maintenance = self._service(
            "maintenance", self._maintenance_command, self._maintenance_is_alive
        )
        self._maintenance_started_at = 0.0
        self._workers = self._make_workers()
        # Proxy variables are meant for the internet, never for this machine.
        self._http = httpx.AsyncClient(timeout=_HTTP_TIMEOUT_S, trust_env=False)

    async def run(self) -> int:
        """Serve until a signal, or until a process can't be kept running; the exit status."""
        with self._signals(), self._at_end:
            serving = asyncio.create_task(self._serve(), name="serve")
            stop = asyncio.create_task(self._stop.wait(), name="stop")
            await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            problem = serving.exception() if serving.done() else None
            if problem is not None:
                self._say(f"{problem}; stopping")
            serving.cancel()
            await asyncio.wait({serving})
            await self._shut_down()
            await self._http.aclose()
        if problem is not None and not isinstance(problem, _EXPECTED):
            raise problem
        if self._force.is_set():
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
            self._start(self._redis.service)
            await self._until_ready([self._redis.service])
        await self._redis.check_format()
        self._at_end.enter_context(
            run_file.written(self._folder, redis_url=self._redis.url, gateway_url=self._gateway_url)
        )
        self._start(self._gateway)
        # The fleet works without the maintenance process, unless that decides how many workers run.
        scales = any(_is_scaled(pool) for pool in pools)
        self._start(self._maintenance, None if scales else self._run_if_possible(self._maintenance))
        async with self._scalers() as scalers:
            first = [
                scalers[name].add()
                for name, pool in self._pools.items()
                for _ in range(pool.range[0])
            ]
            deciding = [self._maintenance] if scales else []
            await self._until_ready([self._gateway, *deciding, *first])
            self._console.print(await self._welcome())
            await self._keep_serving(scalers)

    def _make_workers(self) -> dict[str, Workers]:
        """The workers of each pool, by its name; they share the ports and the GPUs."""
        shares = devices.allot(tuple(self._pools.values()), to_environment("up"))
        used_ports: dict[str, int] = {}
        several = bool(self._settings.pools)

        def make(pool: Pool) -> Workers:
            joined = {"pool": pool.name} if several else {}

            def command(**changes: str | int) -> Command:
                return self._command("worker", self._commands.worker, **joined, **changes)

            name = pool.name if len(self._pools) > 1 else ""
            return Workers(
                self._settings,
                self._service,
                command,
                self._serves,
                shares[pool.name],
                pool=name,
                used_ports=used_ports,
            )

        return {name: make(pool) for name, pool in self._pools.items()}

    @contextlib.asynccontextmanager
    async def _scalers(self) -> AsyncIterator[dict[str, Scaler]]:
        settings = self._settings
        redis = connections.connect(self._redis.url, max_connections=2)
        try:
            yield {
                name: Scaler(
                    workers,
                    name,
                    redis,
                    start=self._start,
                    grace_s=settings.drain_deadline_s + _WORKER_MARGIN_S,
                    say=self._say,
                )
                for name, workers in self._workers.items()
            }
        finally:
            await redis.aclose()

    async def _keep_serving(self, scalers: Mapping[str, Scaler]) -> None:
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(self._failed.wait(), name="failing")]
        for name, pool in self._pools.items():
            if _is_scaled(pool):
                tasks.append(asyncio.create_task(scalers[name].run(), name=f"scaler of {name}"))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(tasks)
        self._raise_failure()
        done.pop().result()  # a bug in the scaler

    # --- starting ---

    def _start(self, service: Service, run: Coroutine[None, None, None] | None = None) -> None:
        """Run a service as a task; `run` is the coroutine if it is not `service.run()`."""
        task = asyncio.create_task(run or service.run(), name=service.name)
        self._running[service] = task
        task.add_done_callback(lambda task: self._ended(service, task))

    def _ended(self, service: Service, task: asyncio.Task[None]) -> None:
        self._running.pop(service, None)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = self._failure or failure
            self._failed.set()

    async def _until_ready(self, services: list[Service]) -> None:
        clock = asyncio.get_running_loop().time
        begun = clock()
        ready = asyncio.create_task(_all_ready(services), name="all ready")
        failing = asyncio.create_task(self._failed.wait(), name="failing")
        try:
            while not ready.done():
                events: list[asyncio.Future[Any]] = [ready, failing]
                await asyncio.wait(events, timeout=_PROGRESS_S, return_when=asyncio.FIRST_COMPLETED)
                self._raise_failure()
                late = [service.name for service in services if not service.ready.is_set()]
                if late:
                    self._say(progress(late, clock() - begun))
        finally:
            ready.cancel()
            failing.cancel()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _service(
        self, name: str, command: Callable[[], Command], is_ready: Callable[[], Awaitable[bool]]
    ) -> Service:
        log = self._logs / f"{name}.log"
        return Service(name, command, is_ready, log=log, console=self._console)

    def _gateway_command(self) -> Command:
        command = self._command("gateway", self._commands.gateway, port=self._gateway_port)
        # At SIGTERM it would wait for responses that can't come: Redis and the workers end too.
        return replace(command, when_orphaned=signal.SIGHUP)

    def _command(self, process: str, argv: tuple[str, ...], **changes: str | int) -> Command:
        changes = {"redis_url": self._redis.url, **changes}
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

    async def _serves(self, url: str) -> bool:
        try:
            response = await self._http.get(f"{url}/readyz")
        except httpx.HTTPError:
            return False
        return response.status_code == httpx.codes.OK

    async def _maintenance_is_alive(self) -> bool:
        settings = self._settings.model_copy(update={"redis_url": self._redis.url})
        return liveness_file.touched_since(settings, self._maintenance_started_at)

    async def _welcome(self) -> str:
        pools = self._pools.values()
        return welcome(
            url=self._gateway_url,
            model=await self._model(),
            simulated=all(pool.engine == "simulated" for pool in pools),
            pools=[PoolLine(pool.name, pool.served_names, pool.range) for pool in pools],
            logs=self._logs,
            with_key=bool(self._settings.api_keys or self._settings.api_keys_file),
        )

    async def _model(self) -> str:
        """The first pool's model as the gateway lists it, else the first of the list."""
        wanted = next(iter(self._pools.values())).served_names
        headers: Mapping[str, str] = {}
        if self._settings.api_keys:
            name, colon, key = self._settings.api_keys[0].get_secret_value().partition(":")
            headers = {"Authorization": f"Bearer {key if colon else name}"}
        url = f"{self._gateway_url}/v1/models"
        with contextlib.suppress(httpx.HTTPError, ValueError, LookupError):
            for _ in range(_LIST_TRIES):
                if models := (await self._http.get(url, headers=headers)).json()["data"]:
                    names = [str(model["id"]) for model in models]
                    return next((name for name in names if name in wanted), names[0])
                await asyncio.sleep(_LIST_POLL_S)
        return next(iter(self._pools.values())).served_names[0]

    # --- stopping ---

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self._force.set()
        self._stop.set()

    async def _shut_down(self) -> None:
        draining = asyncio.create_task(self._drain(), name="drain")
        forced = asyncio.create_task(self._force.wait(), name="force")
        await asyncio.wait({draining, forced}, return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()
        draining.cancel()
        for service in self._running:
            service.kill()
        await asyncio.wait({draining, *self._running.values()})

    async def _drain(self) -> None:
        """Stop everything in order. From now on a signal forces the end, as a second one does."""
        self._stop.set()
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
    least, most = pool.range
    return least < most


async def _all_ready(services: list[Service]) -> None:
    for service in services:
        await service.ready.wait()


def _fresh_logs(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for log in folder.glob("*.log"):
        log.unlink()
    return folder
