"""A worker process that also serves vLLM's own application, as vLLM made it, on another port.

So a test can send a request to vLLM itself and through the gateway, with one engine for both. The
second application has vLLM's own engine client and serving objects: nothing of ours is in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import uvicorn

import worker.__main__
from shared.fleet.pool import Pool
from shared.platform.settings import load_settings
from tests.harness.fleet import Process, Stack
from tests.harness.servers import free_port
from tests.harness.waiting import wait_for

_PORT = "TESTS_VLLM_PORT"
_LOADED_S = 600.0


def start_engine(stack: Stack, **settings: Any) -> tuple[Process, str]:
    """A worker with real vLLM, once it is ready, and the URL of vLLM's own application."""
    port = free_port()
    values = {"engine": "vllm", "worker_port": free_port(), **settings}
    with mock.patch.dict(os.environ, {_PORT: str(port)}):
        process = stack.serve("tests.harness.vllm_process", **values)
    wait_for(process.ready, "vLLM is ready", _LOADED_S)
    return process, f"http://127.0.0.1:{port}"


class _Server(uvicorn.Server):
    """Leaves the process's signals to the worker."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _engine(pool: Pool) -> Any:
    from worker.engines.vllm.args import VllmSettings
    from worker.engines.vllm.engine import VllmEngine

    class Engine(VllmEngine):
        """Also serves vLLM's own application."""

        async def start(self) -> None:
            await super().start()
            server = _Server(
                uvicorn.Config(
                    await _vllms_own(self),
                    host="127.0.0.1",
                    port=int(os.environ[_PORT]),
                    lifespan="off",
                    log_level="warning",
                )
            )
            self._serving = asyncio.create_task(server.serve())

    return Engine(load_settings(VllmSettings), pool)


async def _vllms_own(engine: Any) -> Any:
    """A second application of vLLM's for the same engine."""
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app

    client, args = engine._engine, engine._app.state.args
    tasks = await client.get_supported_tasks()
    app = build_app(args, tasks, client.model_config)
    await init_app_state(client, app.state, args, tasks)
    return app


if __name__ == "__main__":
    with mock.patch.object(worker.__main__, "_engine", _engine):
        worker.__main__.main()
