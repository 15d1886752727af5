"""What one gateway process holds; routes get it from the application's state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry

from gateway.jobs.fleet_view import Fleet
from gateway.jobs.submitter import Submitter
from gateway.streaming.relay import Relay
from shared.platform.eviction import Watch
from shared.platform.metrics import GatewayMetrics
from shared.platform.settings import Settings
from shared.queue.job_queue import JobQueue


@dataclass(frozen=True, slots=True)
class Gateway:
    """One process."""

    id: str
    settings: Settings
    queue: JobQueue
    submitter: Submitter
    relay: Relay
    fleet: Fleet
    eviction: Watch
    metrics: GatewayMetrics
    prometheus: CollectorRegistry


def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


def _tenant(request: Request) -> str:
    tenant: str = request.state.tenant
    return tenant


TheGateway = Annotated[Gateway, Depends(_gateway)]
Tenant = Annotated[str, Depends(_tenant)]
