"""`python -m gateway`: one gateway process. Settings come from the environment."""

from __future__ import annotations

import sys

import uvicorn

from gateway.app import create_app
from shared import logs
from shared.settings import LOOPBACK, Settings, SettingsError, load_settings

# What open streams get after SIGTERM before their connections are cut.
_GRACE_S = 10


def main() -> None:
    """Serves until a signal."""
    try:
        settings = load_settings()
        _check_reach(settings)
        logs.set_up(settings.log_level)
        app = create_app(settings)
    except SettingsError as error:
        print(f"flotilla gateway: {error}", file=sys.stderr)
        sys.exit(2)
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http="httptools",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
    )


def _check_reach(settings: Settings) -> None:
    """Nobody serves a GPU to the world by accident."""
    if settings.host not in LOOPBACK and not settings.tenants():
        raise SettingsError(
            f"FLOTILLA_HOST={settings.host} can be reached by others: set FLOTILLA_API_KEYS "
            "(or FLOTILLA_API_KEYS_FILE) first, or keep to 127.0.0.1"
        )


if __name__ == "__main__":
    main()
