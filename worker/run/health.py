"""The worker's own small HTTP server: health, readiness, metrics. vLLM's server listens nowhere.

It has a thread of its own, so that a probe is answered while a model loads and a scrape does not
sit on the path of a token.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shared.protocol.states import WorkerState

Status = Callable[[], tuple[WorkerState, str]]
"""What the worker is, and why, in a sentence."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals are the lifecycle's

    async def main_loop(self) -> None:
        await asyncio.Event().wait()  # uvicorn's own looks ten times a second whether it is to end


class HealthServer:
    """Listens from `start` until the process ends."""

    def __init__(self, host: str, port: int, status: Status) -> None:
        self.port = port
        self._status = status
        app = Starlette(
            routes=[
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
                Route("/metrics", self._metrics),
            ]
        )
        config = uvicorn.Config(app, host=host, port=port, log_config=None, lifespan="off")
        self._server = _Server(config)

    def start(self) -> None:
        """Listen; `port` is then the real one. Raises OSError if it can't."""
        config = self._server.config
        listener = socket.create_server((config.host, config.port))
        self.port = listener.getsockname()[1]
        threading.Thread(
            target=lambda: asyncio.run(self._server.serve([listener])), name="health", daemon=True
        ).start()

    def _healthz(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    def _readyz(self, _: Request) -> Response:
        state, reason = self._status()
        status = 200 if state.serving else 503
        return JSONResponse({"state": state, "reason": reason}, status)

    def _metrics(self, _: Request) -> Response:
        return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)
