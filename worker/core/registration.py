"""What a worker tells of itself: its id, heartbeats and models in the registry, and its HTTP server
for health, readiness and metrics. vLLM's own server is not started.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shared.fleet.registry import EXPIRY_S, HEARTBEAT_S, WorkerInfo
from shared.platform.logs import RareWarning
from shared.platform.settings import SettingsError
from shared.store.errors import StoreError
from shared.store.fleet_registry import Registry
from worker.engines.interface import Load

if TYPE_CHECKING:
    from worker.core.worker import Worker

log = logging.getLogger("flotilla.worker")

_VERSION = version("flotilla")  # at import, because it reads files

_JOB_IDS = 64
"""Most job ids in a heartbeat."""
_RETRY_S = 0.25


class WorkerIdTaken(Exception):
    """Another process is the worker with this id."""


class Registration:
    """One worker process in the registry."""

    def __init__(self, worker: Worker) -> None:
        self.models: list[dict[str, Any]] = []
        """The engine's entries of /v1/models."""
        # A guess until the engine has loaded: a worker that loads counts for its pool.
        self.pool = worker.pool.name
        self._worker = worker
        self._registry = Registry(worker.queue.servers.primary)
        self._start_s: float | None = None
        # Distinguishes this process from another worker with the same id.
        self._process = secrets.token_hex(8)

    async def reserve_id(self) -> None:
        """Reserve the id; a killed process keeps it for five heartbeats. Raises WorkerIdTaken."""
        registry, worker_id, left_s = self._registry, self._worker.id, EXPIRY_S
        try:
            while not await registry.reserve(worker_id, self._process):
                before_s, left_s = left_s, await registry.reserved_s(worker_id)
                if left_s > before_s:  # the other process is alive and has extended it
                    raise WorkerIdTaken(
                        f"FLOTILLA_WORKER_ID={worker_id}: a running worker has this id; "
                        "give each worker its own id, or none"
                    )
                await asyncio.sleep(_RETRY_S)
        except StoreError as error:
            log.warning("worker id not reserved, the next heartbeat tries again: %s", error)

    async def announce(self, expiry_s: float = EXPIRY_S, failure: str = "") -> None:
        """Write the worker's entry, which expires after `expiry_s`. Raises StoreError.

        `failure`: why the worker ends; empty if nothing has failed.
        """
        worker, jobs = self._worker, self._worker.jobs
        state, reason = worker.status()
        load = worker.engine.load() if jobs else Load(0, 0.0)
        info = WorkerInfo(
            id=worker.id,
            pool=self.pool,
            state=state,
            engine=worker.engine.kind,
            models=tuple(card["id"] for card in self.models),
            slots=worker.engine.capacity.max_num_seqs if jobs else 0,
            running=load.unfinished,
            jobs=len(jobs.runs) if jobs else 0,
            kv_usage=load.kv_usage,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=_VERSION,
            reason=reason,
            start_s=self._start_s,
            job_ids=tuple(islice(jobs.runs, _JOB_IDS)) if jobs else (),
            clock_s=time.monotonic(),
            failure=failure,
            **(asdict(jobs.totals) if jobs else {}),
        )
        await self._registry.announce(info, expiry_s=expiry_s)

    async def announce_if_possible(self, expiry_s: float = EXPIRY_S) -> None:
        """As `announce`; if Redis is unavailable, the next heartbeat announces the worker."""
        with contextlib.suppress(StoreError):
            await self.announce(expiry_s)

    async def set_models(self, cards: list[dict[str, Any]]) -> None:
        """Announce these models from now on, and no more those of adapters that are gone."""
        gone = _adapters(self.models) - _adapters(cards)
        self.models = cards
        self._worker.metrics.adapters.set(len(_adapters(cards)))
        with contextlib.suppress(StoreError):
            await self._registry.forget_models(gone)
        with contextlib.suppress(StoreError):
            await self._register_models()

    async def _register_models(self) -> None:
        pool = self._worker.pool
        await self._registry.register_models(self.pool, self.models, pool.version, pool.weight)

    def loaded(self, models: list[dict[str, Any]]) -> None:
        """The engine has loaded these models."""
        self.models = models
        self.pool = self._worker.pool.name_with(models[0]["id"])

    def started(self) -> None:
        """The worker claims from now on: its start time is complete."""
        self._start_s = _process_age_s()

    async def run_heartbeats(self) -> None:
        """Announce the worker until cancellation. Raises WorkerIdTaken."""
        warn = RareWarning(log)
        while True:
            try:
                if not await self._registry.reserve(self._worker.id, self._process):
                    raise WorkerIdTaken(f"another worker has taken the id {self._worker.id}")
                await self._register_models()
                await self.announce()
            except StoreError as error:
                warn("heartbeat failed: %s", error)
            await asyncio.sleep(HEARTBEAT_S)

    async def leave(self, failure: str = "") -> None:
        """Remove the worker's entries, if Redis is available; else they expire.

        With a `failure`, the last announcement names it for operators and stays until it expires;
        the id is free at once.
        """
        worker_id = self._worker.id
        with contextlib.suppress(StoreError):
            if not failure:
                await self._registry.leave(worker_id, self._process)
            elif await self._registry.reserve(worker_id, self._process):
                await self.announce(failure=failure)
                await self._registry.release_id(worker_id, self._process)


def _adapters(cards: list[dict[str, Any]]) -> set[str]:
    return {card["id"] for card in cards if card.get("parent")}


def _process_age_s() -> float | None:
    """Seconds since this process started, imports included; None where that is unknown."""
    try:
        stat = Path("/proc/self/stat").read_text()
    except OSError:
        return None
    ticks = int(stat.rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the worker handles signals

    async def main_loop(self) -> None:
        await asyncio.Event().wait()  # uvicorn's own loop polls ten times a second for its end


def serve_health(worker: Worker, host: str, port: int) -> None:
    """Serve /healthz, /readyz and /metrics until the process ends. Raises SettingsError if the port
    can't be used.

    A thread of its own answers: while a model loads, too, and a scrape does not delay tokens.
    """

    def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    def readyz(_: Request) -> Response:
        state, reason = worker.status()
        status = 200 if state.serving else 503
        return JSONResponse({"state": state, "reason": reason}, status)

    def metrics(_: Request) -> Response:
        return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)

    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise SettingsError(
            f"can't listen on {host}:{port} ({error.strerror}): choose another FLOTILLA_WORKER_PORT"
        ) from error
    app = Starlette(
        routes=[Route(f"/{each.__name__}", each) for each in (healthz, readyz, metrics)]
    )
    server = _Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    threading.Thread(
        target=lambda: asyncio.run(server.serve([listener])), name="health", daemon=True
    ).start()
