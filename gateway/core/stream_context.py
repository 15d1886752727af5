"""The objects that all answers and event streams of one gateway process share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.core.fleet_view import FleetView
from gateway.core.relay import Relay
from gateway.gateway_settings import GatewaySettings
from shared.job.job import Job
from shared.platform.metrics.gateway import GatewayMetrics
from shared.store.answers import Body
from shared.store.queue import Queue


@dataclass(frozen=True, slots=True)
class StreamContext:
    """Made once, when the gateway starts."""

    gateway_id: str
    settings: GatewaySettings
    queue: Queue
    relay: Relay
    metrics: GatewayMetrics
    fleet: FleetView
    job_object: Callable[[Job], Awaitable[tuple[Body, dict[str, str]]]]
    """A job as the API shows it."""
