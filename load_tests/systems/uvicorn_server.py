"""Serves an ASGI application with uvicorn's fastest settings."""

from __future__ import annotations

import sys

import uvicorn
from starlette.types import ASGIApp


def serve(app: ASGIApp) -> None:
    """Listen on the port that is the first argument of the command line, until a signal."""
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
        backlog=4096,
        timeout_graceful_shutdown=1,
    )
