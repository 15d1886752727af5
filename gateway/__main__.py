"""`python -m gateway`: one gateway process. Settings come from the environment."""

from __future__ import annotations

import socket
import sys

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
    uvicorn.Server(config).run(sockets=[listener])


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
        raise SettingsError(
            f"can't listen on {settings.host}:{settings.port} ({error.strerror}): "
            "choose another FLOTILLA_PORT"
        ) from error


if __name__ == "__main__":
    main()
