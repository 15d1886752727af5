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

from gateway.apis.table import APIS
from gateway.core.context import Gateway
from gateway.core.fleet_view import FleetView
from gateway.core.job_admission import JobAdmission
from gateway.core.job_factory import JobFactory
from gateway.core.job_object import full
from gateway.core.key_refresh import KeyRefresh
from gateway.core.plain_route import PlainApplications
from gateway.core.rate_limiter import RateLimiter
from gateway.core.receiver import Receiver
from gateway.core.relay import Relay
from gateway.core.stream_context import StreamContext
from gateway.core.submitter import Submitter
from gateway.description import openapi
from gateway.files.files import Files
from gateway.front_door import FrontDoor
from gateway.gateway_settings import GatewaySettings
from gateway.http import error_response as errors
from gateway.http.access_log import AccessLog
from gateway.http.auth import Authenticator
from gateway.http.cors import Cors
from gateway.http.known_keys import KnownKeys
from gateway.http.middleware import Authentication, Head, RequestId
from gateway.http.web_pages import WebPages
from gateway.ops import (
    docs_route,
    doctor_route,
    metrics_route,
    overview_route,
    page_route,
    probes,
)
from gateway.ops.overview.overview import Overview
from gateway.ops.overview.sampler import Sampler
from shared.fleet.pools import Pools, load_pools
from shared.platform import logs, tracing
from shared.platform.malformed import MalformedValues
from shared.platform.metrics.gateway import GatewayMetrics
from shared.platform.settings import SettingsError
from shared.platform.tasks import TaskSupervisor
from shared.store.health import Health
from shared.store.operators import AuditTrail
from shared.store.queue import Queue
from shared.store.rate_limit_records import RateLimitRecords
from shared.store.servers import Servers
from shared.store.upkeep import Upkeep

log = logging.getLogger("flotilla.gateway")

_ROUTES = (
    overview_route,
    doctor_route,
    probes,
    metrics_route,
    docs_route,
    page_route,
)
_ROUTERS = [each.router for each in _ROUTES]
# Before the relay is subscribed, answers come from the job log only, which is slower.
_SUBSCRIBE_S = 5.0


def create_app(settings: GatewaySettings) -> FrontDoor:
    """The ASGI application of one gateway, which connects when it starts. Raises SettingsError."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    metrics = GatewayMetrics(registry)
    known = _known_keys(settings)
    authenticator = Authenticator(known)
    access = AccessLog(
        settings.access_log, settings.log_level, as_json=logs.is_json(settings.log_format)
    )
    pools = load_pools(settings)
    plain = PlainApplications(authenticator, metrics, access)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        gateway = _make_gateway(settings, pools, known, metrics, registry)
        app.state.gateway = plain.gateway = gateway
        logs.bind_process(gateway=gateway.id)
        endpoint = settings.otlp_traces_endpoint
        tracing.set_up(endpoint, "gateway", gateway.id, settings.trace_ratio)
        await _start(gateway)
        log.info("gateway %s listens on http://%s:%d", gateway.id, settings.host, settings.port)
        try:
            yield
        finally:
            await _stop(gateway)
            access.write()
            await asyncio.to_thread(tracing.shut_down)
            log.info("gateway %s has ended", gateway.id)

    app = FastAPI(
        title="Flotilla",
        version=version("flotilla"),
        description="OpenAI-compatible inference; every request is a durable job.",
        lifespan=lifespan,
        docs_url=None,  # ops/docs_route.py serves one without files from other hosts
        redoc_url=None,
        redirect_slashes=False,  # front_door.py serves paths with a slash at the end
    )
    app.state.authenticator = authenticator
    errors.install(app, metrics)
    openapi.install(app, APIS, with_keys=known.needed)
    for router in (*(each for api in APIS for each in api.routers), *_ROUTERS):
        app.router.routes += router.routes  # `include_router` would make each route once more
    app.add_middleware(Authentication, authenticator=authenticator, metrics=metrics)
    app.add_middleware(Head)
    app.add_middleware(RequestId, access=access, metrics=metrics)  # outermost: a 401 has an id too
    if settings.cors_origins and not known.needed:
        raise SettingsError("FLOTILLA_CORS_ORIGINS needs API keys: set FLOTILLA_API_KEYS too")
    web_pages = WebPages(settings.allowed_hosts, with_keys=known.needed)
    cors = Cors(settings.cors_origins) if settings.cors_origins else None
    return _front_door(app, plain, web_pages, cors)


def _known_keys(settings: GatewaySettings) -> KnownKeys:
    keys = settings.tenants_by_key(), settings.admins()
    with_priority = {name for name, entry in settings.tenants.items() if entry.priority}
    return KnownKeys(*keys, settings.keys_without_redis_s, with_priority)


def _front_door(
    app: FastAPI, plain: PlainApplications, web_pages: WebPages, cors: Cors | None
) -> FrontDoor:
    plain_routes = [row for api in APIS for row in api.plain]
    forms = [path for api in APIS for path in api.forms]
    return FrontDoor(app, plain_routes, plain, web_pages, forms, cors)


def _make_gateway(
    settings: GatewaySettings,
    pools: Pools,
    known: KnownKeys,
    metrics: GatewayMetrics,
    registry: CollectorRegistry,
) -> Gateway:
    """All objects of the process. Needs a running event loop."""
    gateway_id = f"gw-{secrets.token_hex(6)}"
    servers = Servers(settings.redis_url, settings.shards)
    queue = _queue(settings, servers)
    relay = Relay(queue, servers, gateway_id, metrics)
    fleet = FleetView.of(settings, pools, queue, MalformedValues(metrics.malformed))
    streams = StreamContext(
        gateway_id,
        settings,
        queue,
        relay,
        metrics,
        fleet,
        partial(full, queue, fleet),
    )
    factory = JobFactory(settings, pools, gateway_id, relay.is_served, relay.n_readers.__getitem__)
    health = Health(queue, settings.redis_high_watermark)
    admission = JobAdmission(queue, fleet)
    depths = settings.max_queue_depth, metrics, pools.max_depths
    submitter = Submitter(queue, relay, *depths, admission.with_time)
    gateway = Gateway(
        id=gateway_id,
        settings=settings,
        queue=queue,
        factory=factory,
        admission=admission,
        submitter=submitter,
        relay=relay,
        streams=streams,
        fleet=fleet,
        keys=known,
        health=health,
        tasks=TaskSupervisor(),
        metrics=metrics,
        prometheus=registry,
        on_fleet_change=lambda: sampler.outdate(),  # the sampler is made below, from this object
    )
    sampler = Sampler(Overview(gateway).take)
    for each in (sampler, Files(queue, settings.storage_url), Receiver()):
        gateway.add(each)
    _add_tenants(gateway)
    return gateway


def _add_tenants(gateway: Gateway) -> None:
    """What keeps the keys up to date, applies their limits, and records changes."""
    malformed = MalformedValues(gateway.metrics.malformed)
    gateway.add(KeyRefresh(gateway.queue, gateway.keys, malformed))
    limiter = RateLimiter(RateLimitRecords(gateway.queue), gateway.fleet.now_s)
    gateway.submitter.on_unused = limiter.give_back
    gateway.add(limiter)
    gateway.add(AuditTrail(gateway.queue.servers))


def _queue(settings: GatewaySettings, servers: Servers) -> Queue:
    return Queue(
        servers,
        quotas=settings.quotas,
        share_rules=settings.fair_shares.rules,
        placement=settings.placement.rules,
    )


async def _start(gateway: Gateway) -> None:
    """Start the background tasks; returns when the relay is subscribed, or after _SUBSCRIBE_S."""
    for api in APIS:
        if api.start is not None:
            api.start(gateway)
    upkeep = Upkeep(gateway.queue, gateway.metrics.upkeep)
    gateway.tasks.start("relay", gateway.relay.run())
    gateway.tasks.start("fleet view", gateway.fleet.run())
    gateway.tasks.start("upkeep", upkeep.run())
    gateway.tasks.start("health", gateway.health.run())
    refresh = gateway.of(KeyRefresh)
    if gateway.keys.needed:
        gateway.tasks.start("api keys", refresh.run())
        gateway.tasks.start("rate limits", gateway.of(RateLimiter).run())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SUBSCRIBE_S):
            await gateway.relay.connected()
            if gateway.keys.needed:
                await refresh.loaded.wait()
    gc.collect()
    gc.freeze()  # objects made by imports stay: exclude them from later collections
    gc.set_threshold(10_000)  # by default 700: 3 % of the CPU of a short request


async def _stop(gateway: Gateway) -> None:
    """End the background tasks and close the connections to Redis."""
    await gateway.of(Sampler).close()
    await gateway.relay.drain()
    await gateway.tasks.stop()
    await gateway.queue.close()
    await gateway.queue.servers.close()
