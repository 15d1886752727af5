"""The processes of one `flotilla up`, and what follows what.

Redis first, then the gateway and the workers together; at the end the workers (they drain), then
the gateway (clients still read their streams from it), then Redis. How one process is kept alive is
service.py's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gateway.cli import local_redis, ports
from gateway.cli.child import Command
from gateway.cli.console import Console
from gateway.cli.service import GaveUpError, Service
from gateway.cli.welcome import progress, welcome
from shared.settings import Settings, to_environment

EXIT_FAILED = 1
EXIT_FORCED = 130
_PROGRESS_S = 10.0
_HTTP_TIMEOUT_S = 2.0
_REDIS_WAIT_S = 10.0
_LIST_TRIES = 50
_LIST_POLL_S = 0.2
# A worker ends its jobs within drain_deadline_s by itself; then its engine needs a moment.
_WORKER_MARGIN_S = 15.0
_GATEWAY_GRACE_S = 10.0
_REDIS_GRACE_S = 30.0


class CannotStartError(Exception):
    """Why nothing was started, in one line that says what to do."""


_EXPECTED = (CannotStartError, GaveUpError, OSError)


@dataclass(frozen=True, slots=True)
class Commands:
    """How the two programs are started."""

    gateway: tuple[str, ...] = (sys.executable, "-m", "gateway")
    worker: tuple[str, ...] = (sys.executable, "-m", "worker")


class Supervisor:
    """The processes of one `flotilla up`."""

    def __init__(
        self,
        settings: Settings,
        workers: int,
        commands: Commands,
        folder: Path,
        lock: int,
        console: Console,
    ) -> None:
        self._settings = settings
        self._commands = commands
        self._folder = folder
        self._lock = lock
        self._console = console
        self._run_id = secrets.token_hex(2)
        self._redis_url = settings.redis_url
        self._gateway_port = settings.port or ports.free_port(settings.host)
        self._worker_ports: dict[int, int] = {}
        self._lives: dict[int, int] = {}
        self._logs = _fresh_logs(folder / "logs")
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._running: dict[Service, asyncio.Task[None]] = {}
        self._redis: Service | None = None
        self._gateway = self._service(
            "gateway", self._gateway_command, lambda: self._serves(self._gateway_url)
        )
        self._workers = [self._worker(number) for number in range(1, workers + 1)]
        # Proxies are for the world outside, never for this machine.
        self._http = httpx.AsyncClient(timeout=_HTTP_TIMEOUT_S, trust_env=False)

    async def run(self) -> int:
        """Start, serve until a signal or until one of the processes is hopeless, stop."""
        with self._signals():
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
        """Ends only by GaveUpError or CannotStartError."""
        many = f"{len(self._workers)} worker{'s' * (len(self._workers) > 1)}"
        self._say(f"starting Redis, the gateway and {many}")
        await self._start_redis()
        self._start(self._gateway)
        for worker in self._workers:
            self._start(worker)
        await self._until_ready([self._gateway, *self._workers])
        self._console.print(await self._welcome())
        await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)
        self._raise_failure()

    # --- starting ---

    async def _start_redis(self) -> None:
        if "redis_url" in self._settings.model_fields_set:
            await self._wait_for_own_redis()
            return
        environment = to_environment(self._settings)
        server = local_redis.find_server(environment.get("PATH"))
        if server is None:
            raise CannotStartError(
                "there is no redis-server here: apt-get install redis-server, "
                "or name one with --redis-url"
            )
        port = ports.free_port("127.0.0.1")
        self._redis_url = f"redis://127.0.0.1:{port}/0"
        command = local_redis.server_command(
            server, self._folder / "redis", port, environment, self._lock
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

    def _start(self, service: Service) -> None:
        self._running[service] = asyncio.create_task(service.run(), name=service.name)

    async def _until_ready(self, services: list[Service]) -> None:
        clock = asyncio.get_running_loop().time
        begun = clock()
        ready = asyncio.create_task(_all_ready(services), name="all ready")
        try:
            while not ready.done():
                events: list[asyncio.Future[Any]] = [ready, *self._running.values()]
                await asyncio.wait(events, timeout=_PROGRESS_S, return_when=asyncio.FIRST_COMPLETED)
                self._raise_failure()
                late = [service.name for service in services if not service.ready.is_set()]
                if late:
                    self._say(progress(late, clock() - begun))
        finally:
            ready.cancel()

    def _raise_failure(self) -> None:
        for task in self._running.values():
            if task.done():
                task.result()

    def _service(
        self, name: str, command: Callable[[], Command], is_ready: Callable[[], Awaitable[bool]]
    ) -> Service:
        log = self._logs / f"{name}.log"
        return Service(name, command, is_ready, log=log, console=self._console)

    def _gateway_command(self) -> Command:
        return self._command(self._commands.gateway, port=self._gateway_port)

    def _worker(self, number: int) -> Service:
        return self._service(
            f"worker-{number}",
            lambda: self._worker_command(number),
            lambda: self._serves(
                ports.url_of(self._settings.worker_host, self._worker_ports[number])
            ),
        )

    def _worker_command(self, number: int) -> Command:
        """Every life has a worker id of its own: Redis consumers are never used twice."""
        life = self._lives[number] = self._lives.get(number, 0) + 1
        worker_id = f"w{number}-{self._run_id}" + (f"-{life}" if life > 1 else "")
        others = [port for other, port in self._worker_ports.items() if other != number]
        host, first = self._settings.worker_host, self._settings.worker_port
        self._worker_ports[number] = port = ports.free_port(host, first, others)
        return self._command(self._commands.worker, worker_id=worker_id, worker_port=port)

    def _command(self, argv: tuple[str, ...], **changes: str | int) -> Command:
        environment = to_environment(self._settings, redis_url=self._redis_url, **changes)
        return Command(argv, environment | {"PYTHONUNBUFFERED": "1"})

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

    async def _welcome(self) -> str:
        return welcome(
            url=self._gateway_url,
            model=await self._model(),
            simulated=self._settings.engine == "simulated",
            workers=len(self._workers),
            logs=self._logs,
            with_key=bool(self._settings.api_keys or self._settings.api_keys_file),
        )

    async def _model(self) -> str:
        """The name of the first model that the gateway lists, which may take it a moment."""
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
        return self._settings.served_model_name or self._settings.model or "MODEL"

    # --- stopping ---

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self._asked_to_stop)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _asked_to_stop(self) -> None:
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
        """A signal that comes now forces, so whatever made us stop counts as the first."""
        self._stop.set()
        workers = [worker for worker in self._workers if worker in self._running]
        if workers:
            deadline_s = self._settings.drain_deadline_s
            self._say(f"draining for up to {deadline_s:g} s; Ctrl-C again to force")
            await asyncio.gather(*(w.stop(deadline_s + _WORKER_MARGIN_S) for w in workers))
        if self._gateway in self._running:
            await self._gateway.stop(_GATEWAY_GRACE_S)
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
