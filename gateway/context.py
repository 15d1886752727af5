"""What one gateway process holds; routes get it from the application's state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry

from gateway.fleet import Fleet
from gateway.relay import Relay
from gateway.submitter import Submitter
from shared.eviction import Watch
from shared.metrics import GatewayMetrics
from shared.queue import JobQueue
from shared.settings import Settings


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
