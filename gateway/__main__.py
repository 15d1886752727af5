"""`python -m gateway`: one gateway process. Settings come from the environment."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import sys
from types import FrameType

import uvicorn

from gateway.app import create_app
from shared import logs
from shared.settings import LOOPBACK, Settings, SettingsError, load_settings


def main() -> None:
    """Serves until a signal."""
    try:
        settings = load_settings()
        _check_reach(settings)
        logs.set_up(settings.log_level)
        app = create_app(settings)
        listener = _listen(settings)
    except SettingsError as error:
        print(f"flotilla gateway: {error}", file=sys.stderr)
        sys.exit(2)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing looks at who a client says it is
        timeout_graceful_shutdown=settings.grace_s,
    )
    _Server(config).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Looks at the clock once a second, not ten times: each look wakes the process."""

    _loop: asyncio.AbstractEventLoop | None = None

    async def main_loop(self) -> None:
        self._told_to_end = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._told_to_end.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._told_to_end.set)


def _check_reach(settings: Settings) -> None:
    """Nobody serves a GPU to the world by accident."""
    if settings.host not in LOOPBACK and not settings.keyless and not settings.tenants():
        raise SettingsError(
            f"FLOTILLA_HOST={settings.host} can be reached by others: set FLOTILLA_API_KEYS "
            "(or FLOTILLA_API_KEYS_FILE) first, or keep to 127.0.0.1"
        )


def _listen(settings: Settings) -> socket.socket:
    """Bound before anything starts, so that a port in use is the first thing said."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        if error.errno == errno.EADDRINUSE:
            raise SettingsError(f"{where} is in use; choose another with --port") from error
        raise SettingsError(f"can't listen on {where}: {error.strerror}") from error


if __name__ == "__main__":
    main()
