"""The Redis of one `flotilla up`: one that it starts, or one that runs already."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from urllib.parse import quote

from gateway.launcher import local_redis
from gateway.launcher.child import Command
from gateway.launcher.launcher_settings import LauncherSettings
from gateway.launcher.service import Service
from shared.fleet.pool import Pool
from shared.platform.redis_url import without_password
from shared.platform.settings import SettingsError, to_environment
from shared.store.errors import StoreError
from shared.store.health import FORMAT_VERSION, FormatMismatch, refuse_unfit
from shared.store.queue import Queue
from shared.store.servers import Servers
from shared.store.upkeep import forget_idle_models

_WAIT_S = 10.0

MakeService = Callable[[str, Callable[[], Command], Callable[[], Awaitable[bool]]], Service]


class CannotStartError(Exception):
    """Nothing was started; the message is the reason, and what to do."""


class FleetRedis:
    """`url` is known after `find`."""

    def __init__(
        self,
        settings: LauncherSettings,
        folder: Path,
        lock: int,
        make_service: MakeService,
        say: Callable[[str], None],
    ) -> None:
        """`lock`: the file descriptor that holds `folder`; Redis inherits it."""
        self.url = settings.redis_url
        self.service: Service | None = None
        """The process to run; None if Redis runs already."""
        self._settings = settings
        self._folder = folder
        self._lock = lock
        self._make_service = make_service
        self._say = say

    async def find(self, at_end: contextlib.ExitStack) -> None:
        """Wait for the Redis that the settings name, else prepare `service`.

        `at_end` removes its socket. Raises CannotStartError.
        """
        if "redis_url" in self._settings.model_fields_set:
            await self._wait()
            return
        environment = to_environment("")
        server = local_redis.find_server(environment.get("PATH"))
        if server is None:
            raise CannotStartError(
                "redis-server was not found: apt-get install redis-server, "
                "or name a running Redis with --redis-url"
            )
        socket = at_end.enter_context(local_redis.socket_path(self._folder))
        self.url = f"unix://{quote(str(socket))}?db=0"
        max_bytes = local_redis.memory_share()
        self._say(
            f"Redis may hold {max_bytes >> 20:,} MiB, a quarter of the memory; jobs are refused "
            "before it is full"
        )
        command = local_redis.server_command(
            server,
            self._folder / "redis",
            socket,
            environment,
            self._lock,
            max_bytes=max_bytes,
            durable=self._settings.durable,
        )
        self.service = self._make_service("redis", lambda: command, self._answers)

    async def check(self) -> None:
        """Raise CannotStartError for a server with which each process would fail."""
        try:
            await refuse_unfit(self._settings.model_copy(update={"redis_url": self.url}))
        except FormatMismatch as error:
            if self.service is None:
                raise CannotStartError(str(error)) from error
            raise CannotStartError(
                f"{self._folder / 'redis'} holds data of format {error.found}, this release needs "
                f"{FORMAT_VERSION}: let the release that wrote it finish the jobs, then delete "
                "that folder, or run `flotilla up` in another one"
            ) from error
        except SettingsError as error:
            raise CannotStartError(
                f"{error}: apt-get install a newer one, or name a running one with --redis-url"
            ) from error

    async def forget_models(self, pools: Collection[Pool]) -> None:
        """Forget the models of earlier runs, which had other pools, unless these have jobs left.

        Not in a Redis that runs already: other workers may serve them. Raises CannotStartError.
        """
        # Such an argument gives the pool another name than it has here.
        renamed = any("--served-model-name" in pool.engine_args for pool in pools)
        if self.service is None or renamed:
            return
        try:
            async with Servers(self.url, self._settings.shards) as servers:
                used = {pool.name for pool in pools}
                names = await forget_idle_models(Queue(servers), used)
        except StoreError as error:
            raise CannotStartError(f"Redis failed: {error}") from error
        if names:
            self._say(f"models of earlier runs are forgotten: {', '.join(names)}")

    async def _answers(self) -> bool:
        return await local_redis.ping(self.url) is None

    async def _wait(self) -> None:
        where = without_password(self.url)
        for attempt in range(round(_WAIT_S)):
            problem = await local_redis.ping(self.url)
            if problem is None:
                return
            if attempt == 0:
                self._say(f"waiting for Redis at {where}")
            await asyncio.sleep(1)
        raise CannotStartError(f"no Redis answers at {where}: {problem}")
