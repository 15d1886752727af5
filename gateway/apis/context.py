"""The objects of one gateway process. `app.py` makes them; routes get them as dependencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry

from gateway.apis.admin.operator_calls import OperatorCalls
from gateway.apis.responses.conversation_store import Conversations
from gateway.apis.responses.response_jobs import ResponseJobs
from gateway.core.fleet_view import FleetView
from gateway.core.job_factory import JobFactory
from gateway.core.relay import Relay
from gateway.core.stream_context import StreamContext
from gateway.core.submitter import Submitter
from gateway.core.tenants import Tenant
from gateway.gateway_settings import GatewaySettings
from gateway.ops.overview.sampler import Sampler
from shared.platform.metrics import GatewayMetrics
from shared.platform.tasks import TaskSupervisor
from shared.store.redis.eviction import EvictionMonitor
from shared.store.redis.format_version import FormatMonitor
from shared.store.redis.job_queue import JobQueue


@dataclass(frozen=True, slots=True)
class Gateway:
    """Made once, when the process starts; of the package, only `routes` and `app.py` see it."""

    id: str
    settings: GatewaySettings
    queue: JobQueue
    factory: JobFactory
    submitter: Submitter
    responses: ResponseJobs
    conversations: Conversations
    relay: Relay
    streams: StreamContext
    fleet: FleetView
    operations: OperatorCalls
    sampler: Sampler
    tenants: tuple[Tenant, ...]
    eviction: EvictionMonitor
    format: FormatMonitor
    tasks: TaskSupervisor
    metrics: GatewayMetrics
    prometheus: CollectorRegistry


def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


def _tenant(request: Request) -> str:
    tenant: str = request.state.tenant
    return tenant


GatewayDep = Annotated[Gateway, Depends(_gateway)]
TenantDep = Annotated[str, Depends(_tenant)]
