"""The worker's HTTP server for health, readiness and metrics. vLLM's own server is not started.

It runs in a thread of its own: probes are answered while a model loads, and a scrape does not delay
tokens.
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

from shared.job.states import WorkerState
from shared.platform.settings import SettingsError

Status = Callable[[], tuple[WorkerState, str]]
"""Returns the worker's state and the reason for it, a short sentence. Called in another thread."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # lifecycle.py handles signals

    async def main_loop(self) -> None:
        await asyncio.Event().wait()  # uvicorn's own loop polls ten times a second for its end


class HealthServer:
    """Serves /healthz, /readyz and /metrics from `start` until the process ends."""

    def __init__(self, host: str, port: int, status: Status) -> None:
        self.port = port
        self.status = status
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
        """Listen; `port` is the real one afterwards. Raises SettingsError if it can't be used."""
        host, port = self._server.config.host, self._server.config.port
        try:
            listener = socket.create_server((host, port))
        except OSError as error:
            raise SettingsError(
                f"can't listen on {host}:{port} ({error.strerror}): "
                "choose another FLOTILLA_WORKER_PORT"
            ) from error
        self.port = listener.getsockname()[1]
        threading.Thread(
            target=lambda: asyncio.run(self._server.serve([listener])), name="health", daemon=True
        ).start()

    def _healthz(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    def _readyz(self, _: Request) -> Response:
        state, reason = self.status()
        status = 200 if state.serving else 503
        return JSONResponse({"state": state, "reason": reason}, status)

    def _metrics(self, _: Request) -> Response:
        return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)
