"""`lean`: the simulated engine's own ASGI application on uvicorn, the cheapest server in Python.

`python -m load_tests.systems.lean PORT`; the engine's settings are read from the environment.
"""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from load_tests.systems.system import System
from shared.platform.settings import load_settings
from worker.engines.simulated.engine import SimulatedEngine


class Lean(System):
    """A lower bound: chunks are bytes from a template, without objects or a web framework."""

    name = "lean"

    def start(self) -> None:
        """Start the server."""
        self.ports = [self.start_server("load_tests.systems.lean")]


class _App:
    """Starts the engine with the server (ASGI lifespan)."""

    def __init__(self) -> None:
        self._engine: SimulatedEngine | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            assert self._engine is not None, "uvicorn starts the lifespan first"
            await self._engine(scope, receive, send)
            return
        await receive()
        self._engine = SimulatedEngine(load_settings())
        await self._engine.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._engine.close()
        await send({"type": "lifespan.shutdown.complete"})


if __name__ == "__main__":
    from load_tests.systems.uvicorn_server import serve

    serve(_App())
