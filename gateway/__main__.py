"""`python -m gateway` runs one gateway process."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
from functools import partial
from typing import Any

import uvicorn

from gateway.app import create_app
from gateway.front_door import FrontDoor
from gateway.gateway_settings import GatewaySettings
from gateway.http.connection import Connection
from gateway.http.connection_limits import Connections, most_connections, raise_descriptor_limit
from gateway.http.half_open import limit_half_open
from gateway.listen_settings import LOOPBACK
from shared.job.errors import GatewayStopped
from shared.platform import logs, process_start, tracing
from shared.platform.loop_watchdog import LoopWatchdog
from shared.platform.redis_url import is_cluster
from shared.platform.settings import SettingsError, load_settings
from shared.store.health import refuse_unfit

_CLOSE_S = 1
"""Seconds for aborted answers to be sent to their clients after SIGHUP."""
_SEND_S = 3
"""The same after SIGTERM, for a busy machine; a client that does not read has no more."""


def main() -> None:
    """Serve until a signal. Exits with 2 if settings or Redis can't be used."""
    process_start.prepare()
    try:
        settings = load_settings(GatewaySettings)
        _check_keys(settings)
        logs.set_up(settings.log_level, settings.log_format)
        tracing.check(settings.otlp_traces_endpoint)
        asyncio.run(refuse_unfit(settings))
        app = create_app(settings)
        listener = _listen(settings)
        limit_half_open(listener, settings.write_timeout_s)
    except SettingsError as error:
        print(f"flotilla gateway: {error}", file=sys.stderr)
        sys.exit(2)
    n_clients = 1 + settings.shards * is_cluster(settings.redis_url)
    most = most_connections(raise_descriptor_limit(), n_clients)
    connection: Any = partial(Connection, Connections(settings, app.metrics, most))
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=connection,
        ws="none",  # no websockets: a request with `Upgrade` is answered as HTTP
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # headers with a client's address are not trusted
        timeout_keep_alive=settings.idle_connection_s,
        timeout_graceful_shutdown=settings.grace_s + _SEND_S,
    )
    _Server(config, app, settings.grace_s).run(sockets=[listener])
    if app.format_mismatch:
        print(f"flotilla gateway: {app.format_mismatch}", file=sys.stderr)
        sys.exit(2)


class _Server(uvicorn.Server):
    """uvicorn's server, with a time limit for open answers.

    SIGTERM: answers that are not complete after `grace_s` seconds end with an error. SIGHUP: they
    end so at once; the kernel sends it when `flotilla up` has died (launcher/child.py), or when the
    terminal is closed.
    """

    def __init__(self, config: uvicorn.Config, app: FrontDoor, grace_s: float) -> None:
        super().__init__(config)
        self._watchdog = LoopWatchdog()
        self._app = app
        self._grace_s = grace_s

    async def main_loop(self) -> None:
        """Run until a signal, or until Redis has data of another format."""
        self._watchdog.start()
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # ignored: with nohup
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, self._on_hang_up)
        await super().main_loop()

    async def on_tick(self, counter: int) -> bool:
        """Whether to end now."""
        if self._app.format_mismatch:
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.end_overviews()
        aborting = asyncio.get_running_loop().call_later(self._grace_s, self._fail_open_streams)
        await super().shutdown(sockets)
        aborting.cancel()

    def _fail_open_streams(self) -> None:
        error = GatewayStopped("This gateway was stopped before the answer was complete.")
        self._app.fail_open_streams(error)

    def _on_hang_up(self) -> None:
        self._fail_open_streams()
        self.should_exit = True
        # Do not wait longer for Redis, which may have ended too, or for slow clients.
        asyncio.get_running_loop().call_later(_CLOSE_S, os._exit, os.EX_OK)


def _check_keys(settings: GatewaySettings) -> None:
    """Raises SettingsError if other hosts can connect and no keys are configured."""
    if settings.host not in LOOPBACK and not settings.keyless and not settings.tenants_by_key():
        raise SettingsError(
            f"FLOTILLA_HOST={settings.host} can be reached by others: set FLOTILLA_API_KEYS "
            "(or FLOTILLA_API_KEYS_FILE) first, or listen on 127.0.0.1"
        )


def _listen(settings: GatewaySettings) -> socket.socket:
    """The listening socket, opened first so that a port in use is the first error.

    Raises SettingsError.
    """
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
