"""Makes the gateway's application: its objects, background tasks, middleware and routes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import secrets
from collections.abc import AsyncIterator
from functools import partial
from importlib.metadata import version

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, ProcessCollector

from gateway.context import Gateway
from gateway.http import errors
from gateway.http.access_log import AccessLog
from gateway.http.auth import Authenticator
from gateway.http.middleware import Authentication, Head, RequestId
from gateway.jobs import job_object
from gateway.jobs.fleet_view import FleetView
from gateway.jobs.job_factory import JobFactory
from gateway.jobs.submitter import Submitter
from gateway.routes import (
    admin,
    autoscale,
    docs,
    health,
    inference,
    jobs,
    models,
    openapi,
)
from gateway.routes import metrics as metrics_route
from gateway.routes.inference import InferenceApp
from gateway.streaming.cancellation import Cancellations
from gateway.streaming.context import StreamContext
from gateway.streaming.relay import Relay
from shared.fleet.pools import load_pools
from shared.fleet.registry import Registry
from shared.fleet.scale_decisions import ScaleStore
from shared.platform import eviction, logs
from shared.platform import redis_client as connections
from shared.platform.malformed import MalformedValues
from shared.platform.metrics import GatewayMetrics
from shared.platform.servers import Servers
from shared.platform.settings import Settings
from shared.platform.tasks import TaskSupervisor
from shared.queue.job_queue import JobQueue
from shared.queue.reaper import Reaper

log = logging.getLogger("flotilla.gateway")

# Before the relay is subscribed, answers come from the job log only, which is slower.
_SUBSCRIBE_S = 5.0


async def _warn_of_redis_settings(servers: Servers) -> None:
    """Log settings of Redis that endanger jobs, as far as the servers can be asked."""
    for redis in servers.all:
        with contextlib.suppress(connections.RedisError, OSError):
            for weakness in await connections.weaknesses(redis):
                log.warning("Redis: %s", weakness)


def create_app(settings: Settings) -> InferenceApp:
    """The ASGI application of one gateway; it connects to Redis when it starts.

    Raises SettingsError.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    metrics = GatewayMetrics(registry)
    authenticator = Authenticator(settings.tenants(), settings.wrong_keys_per_minute, metrics)
    access = AccessLog(
        settings.access_log, settings.log_level, as_json=logs.is_json(settings.log_format)
    )
    max_queue_depth = load_pools(settings).own.max_queue_depth
    metrics.depth_limit.set(max_queue_depth * settings.shards)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        servers = Servers(settings.redis_url, settings.shard_redis_urls)
        queue = JobQueue(servers, shards=settings.shards)
        gateway_id = f"gw-{secrets.token_hex(6)}"
        logs.bind_process(gateway=gateway_id)
        buffer_bytes = settings.stream_buffer_bytes
        relay = Relay(queue, settings.server_urls, gateway_id, metrics, buffer_bytes)
        malformed = MalformedValues(metrics.malformed)
        fleet = FleetView(
            Registry(servers.primary, malformed), ScaleStore(servers.primary, malformed)
        )
        watch = eviction.EvictionMonitor([servers.primary, *servers.all])
        tasks = TaskSupervisor(metrics.background_tasks)
        streams = StreamContext(
            gateway_id,
            settings,
            queue,
            relay,
            Cancellations(queue),
            metrics,
            fleet.wait_reason,
            partial(job_object.full, queue, fleet),
        )
        app.state.gateway = Gateway(
            id=gateway_id,
            settings=settings,
            queue=queue,
            factory=JobFactory(settings, gateway_id, relay.is_subscribed),
            submitter=Submitter(queue, max_queue_depth, metrics),
            relay=relay,
            streams=streams,
            fleet=fleet,
            eviction=watch,
            tasks=tasks,
            metrics=metrics,
            prometheus=registry,
        )
        reaper = Reaper(queue, settings.lease_s, metrics.reaper)
        tasks.start("relay", relay.run())
        tasks.start("fleet view", fleet.run())
        tasks.start("reaper", reaper.run())
        tasks.start("eviction monitor", watch.run())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SUBSCRIBE_S):
                await relay.connected()
        await _warn_of_redis_settings(servers)
        gc.collect()
        gc.freeze()  # objects made by imports stay: exclude them from later collections
        log.info("gateway %s listens on http://%s:%d", gateway_id, settings.host, settings.port)
        try:
            yield
        finally:
            await streams.cancellations.drain()
            await tasks.stop()
            await queue.close()
            await servers.close()
            access.write()
            log.info("gateway %s has ended", gateway_id)

    app = FastAPI(
        title="Flotilla",
        version=version("flotilla"),
        description="OpenAI-compatible inference; every request is a durable job.",
        lifespan=lifespan,
        docs_url=None,  # routes/docs.py serves one without files from other hosts
        redoc_url=None,
    )
    errors.install(app, metrics)
    openapi.install(app, with_keys=bool(settings.tenants()))
    for module in (inference, jobs, models, autoscale, admin, health, metrics_route, docs):
        app.include_router(module.router)
    app.add_middleware(Authentication, authenticator=authenticator, metrics=metrics)
    app.add_middleware(Head)
    app.add_middleware(RequestId, access=access, metrics=metrics)  # outermost: a 401 has an id too
    return InferenceApp(app, authenticator, metrics, access)
