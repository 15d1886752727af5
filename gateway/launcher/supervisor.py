"""Starts and stops the processes of one `flotilla up` in the right order.

Redis starts first, then the gateway, the maintenance process and the workers together. At the end
the workers stop first (they drain), then the gateway (clients still read their streams from it),
then Redis. service.py keeps one process alive; scaler.py decides how many workers run with
`--autoscale`.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from gateway.launcher import devices, local_redis, ports, run_file
from gateway.launcher.child import Command
from gateway.launcher.console import Console
from gateway.launcher.scaler import Scaler
from gateway.launcher.service import GaveUpError, Service
from gateway.launcher.welcome import progress, welcome
from gateway.launcher.workers import Workers
from gateway.maintenance import liveness_file
from shared.fleet.pools import load_pools
from shared.platform import redis_client as connections
from shared.platform.settings import Settings, to_environment
from shared.platform.tasks import end
from shared.protocol.version import FORMAT_VERSION, FormatMismatch, refuse_other_format

EXIT_FAILED = 1
EXIT_FORCED = 130
_PROGRESS_S = 10.0
_HTTP_TIMEOUT_S = 2.0
_REDIS_WAIT_S = 10.0
_LIST_TRIES = 50
_LIST_POLL_S = 0.2
# A worker ends its jobs within drain_deadline_s; then its engine needs time to stop.
_WORKER_MARGIN_S = 15.0
# The gateway ends open responses within grace_s; then the process needs time to stop.
_GATEWAY_MARGIN_S = 5.0
_REDIS_GRACE_S = 30.0


class CannotStartError(Exception):
    """Why nothing was started; the message says what to do."""


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
        settings: Settings,
        workers: tuple[int, int],
        commands: Commands,
        folder: Path,
        lock: int,
        console: Console,
    ) -> None:
        """`workers` is (least, most); if they differ, the autoscaler decides how many run."""
        self._settings = settings
        self._pool = load_pools(settings).own
        self._least, self._most = workers
        self._commands = commands
        self._folder = folder
        self._lock = lock
        self._console = console
        self._redis_url = settings.redis_url
        self._near_redis_url = settings.redis_url  # for the gateway and the workers
        self._gateway_port = settings.port or ports.free_port(settings.host)
        self._logs = _fresh_logs(folder / "logs")
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._running: dict[Service, asyncio.Task[None]] = {}
        self._at_end = contextlib.ExitStack()
        self._failed = asyncio.Event()
        self._failure: BaseException | None = None
        self._redis: Service | None = None
        self._gateway = self._service(
            "gateway", self._gateway_command, lambda: self._serves(self._gateway_url)
        )
        self._maintenance = self._service(
            "maintenance", self._maintenance_command, self._maintenance_is_alive
        )
        self._maintenance_started_at = 0.0
        self._workers = Workers(
            settings,
            self._service,
            lambda **changes: self._command(commands.worker, **changes),
            self._serves,
            devices.shares(self._pool, to_environment(settings)),
        )
        # Proxy variables are meant for the internet, never for this machine.
        self._http = httpx.AsyncClient(timeout=_HTTP_TIMEOUT_S, trust_env=False)

    async def run(self) -> int:
        """Serve until a signal, or until a process can't be kept alive; the exit status."""
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
        many = f"{self._how_many()} worker{'s' * (self._most > 1)}"
        self._say(f"starting Redis, the gateway and {many}")
        await self._start_redis()
        await self._check_format()
        self._at_end.enter_context(
            run_file.written(self._folder, redis_url=self._redis_url, gateway_url=self._gateway_url)
        )
        self._start(self._gateway)
        # The fleet works without the maintenance process, unless that decides how many workers run.
        scales = self._least < self._most
        self._start(self._maintenance, None if scales else self._run_if_possible(self._maintenance))
        async with self._scaler() as scaler:
            first = [scaler.add() for _ in range(self._least)]
            deciding = [self._maintenance] if scales else []
            await self._until_ready([self._gateway, *deciding, *first])
            self._console.print(await self._welcome())
            await self._keep_serving(scaler)

    @contextlib.asynccontextmanager
    async def _scaler(self) -> AsyncIterator[Scaler]:
        settings = self._settings
        redis = connections.connect(self._redis_url, max_connections=2)
        try:
            yield Scaler(
                self._workers,
                self._pool.name,
                redis,
                start=self._start,
                grace_s=settings.drain_deadline_s + _WORKER_MARGIN_S,
                say=self._say,
            )
        finally:
            await redis.aclose()

    async def _keep_serving(self, scaler: Scaler) -> None:
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(self._failed.wait(), name="failing")]
        if self._least < self._most:
            tasks.append(asyncio.create_task(scaler.run(), name="scaler"))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(tasks)
        self._raise_failure()
        done.pop().result()  # a bug in the scaler

    # --- starting ---

    async def _start_redis(self) -> None:
        if "redis_url" in self._settings.model_fields_set:
            await self._wait_for_own_redis()
            return
        environment = to_environment(self._settings)
        server = local_redis.find_server(environment.get("PATH"))
        if server is None:
            raise CannotStartError(
                "redis-server was not found: apt-get install redis-server, "
                "or name a running Redis with --redis-url"
            )
        port = ports.free_port("127.0.0.1")
        self._redis_url = f"redis://127.0.0.1:{port}/0"
        socket = self._at_end.enter_context(local_redis.socket_path(self._folder))
        self._near_redis_url = f"unix://{quote(str(socket))}?db=0" if socket else self._redis_url
        command = local_redis.server_command(
            server,
            self._folder / "redis",
            port,
            socket,
            environment,
            self._lock,
            durable=self._settings.durable,
        )

        async def answers() -> bool:
            return await local_redis.ping(self._redis_url) is None

        self._redis = self._service("redis", lambda: command, answers)
        self._start(self._redis)
        await self._until_ready([self._redis])

    async def _wait_for_own_redis(self) -> None:
        where = local_redis.without_password(self._redis_url)
        for attempt in range(round(_REDIS_WAIT_S)):
            problem = await local_redis.ping(self._redis_url)
            if problem is None:
                return
            if attempt == 0:
                self._say(f"waiting for Redis at {where}")
            await asyncio.sleep(1)
        raise CannotStartError(f"no Redis answers at {where}: {problem}")

    async def _check_format(self) -> None:
        """Raise CannotStartError if Redis holds another release's data: one message, not four."""
        urls = self._settings.all_redis_urls if self._redis is None else [self._redis_url]
        try:
            await refuse_other_format(urls, self._settings.shards)
        except FormatMismatch as error:
            if self._redis is None:
                raise CannotStartError(str(error)) from error
            raise CannotStartError(
                f"{self._folder / 'redis'} holds data of format {error.found}, this release needs "
                f"{FORMAT_VERSION}: let the release that wrote it finish the jobs, then delete "
                "that folder, or run `flotilla up` in another one"
            ) from error

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
        command = self._command(self._commands.gateway, port=self._gateway_port)
        # At SIGTERM it would wait for responses that can't come: Redis and the workers end too.
        return replace(command, when_orphaned=signal.SIGHUP)

    def _command(self, argv: tuple[str, ...], **changes: str | int) -> Command:
        urls = {"redis_url": self._near_redis_url}
        environment = to_environment(self._settings, **(urls | changes))
        return Command(argv, environment | {"PYTHONUNBUFFERED": "1"})

    def _maintenance_command(self) -> Command:
        self._maintenance_started_at = time.time()
        return self._command(self._commands.maintenance, redis_url=self._redis_url)

    async def _run_if_possible(self, service: Service) -> None:
        try:
            await service.run()
        except (GaveUpError, OSError) as error:
            self._say(f"{error}; the other processes keep running")

    # --- asking ---

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
        settings = self._settings.model_copy(update={"redis_url": self._redis_url})
        return liveness_file.touched_since(settings, self._maintenance_started_at)

    async def _welcome(self) -> str:
        return welcome(
            url=self._gateway_url,
            model=await self._model(),
            simulated=self._pool.engine == "simulated",
            workers=self._how_many() + ", as the load asks" * (self._least < self._most),
            logs=self._logs,
            with_key=bool(self._settings.api_keys or self._settings.api_keys_file),
        )

    async def _model(self) -> str:
        """The name of the first model that the gateway lists, once it lists one."""
        headers: Mapping[str, str] = {}
        if self._settings.api_keys:
            name, colon, key = self._settings.api_keys[0].get_secret_value().partition(":")
            headers = {"Authorization": f"Bearer {key if colon else name}"}
        url = f"{self._gateway_url}/v1/models"
        with contextlib.suppress(httpx.HTTPError, ValueError, LookupError):
            for _ in range(_LIST_TRIES):
                if models := (await self._http.get(url, headers=headers)).json()["data"]:
                    return str(models[0]["id"])
                await asyncio.sleep(_LIST_POLL_S)
        return self._pool.served_model_name

    def _how_many(self) -> str:
        return f"{self._least}" if self._least == self._most else f"{self._least} to {self._most}"

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
        """Stop everything in order. From now on a signal forces the end, as the second one."""
        self._stop.set()
        workers = list(self._workers.services.values())
        if workers:
            deadline_s = self._settings.drain_deadline_s
            self._say(f"draining for up to {deadline_s:g} s; Ctrl-C again to force")
            await asyncio.gather(*(w.stop(deadline_s + _WORKER_MARGIN_S) for w in workers))
        rest = [
            service for service in (self._gateway, self._maintenance) if service in self._running
        ]
        grace_s = self._settings.grace_s + _GATEWAY_MARGIN_S
        await asyncio.gather(*(service.stop(grace_s) for service in rest))
        if self._redis is not None:
            await self._redis.stop(_REDIS_GRACE_S)

    def _say(self, line: str) -> None:
        self._console.show("flotilla", line)


async def _all_ready(services: list[Service]) -> None:
    for service in services:
        await service.ready.wait()


def _fresh_logs(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for log in folder.glob("*.log"):
        log.unlink()
    return folder
