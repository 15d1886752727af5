"""Serve an application on the port that the command line names, as fast as uvicorn can."""

from __future__ import annotations

import sys

import uvicorn
from starlette.types import ASGIApp


def serve(app: ASGIApp) -> None:
    """Until a signal."""
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
