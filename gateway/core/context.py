"""The core's objects of one gateway process. `app.py` makes them; routes depend on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry

from gateway.core.endpoint_step import EndpointStep
from gateway.core.fleet_view import FleetView
from gateway.core.job_admission import JobAdmission
from gateway.core.job_factory import JobFactory
from gateway.core.relay import Relay
from gateway.core.stream_context import StreamContext
from gateway.core.submitter import Submitter
from gateway.gateway_settings import GatewaySettings
from gateway.http.known_keys import KnownKeys
from shared.platform.metrics.gateway import GatewayMetrics
from shared.platform.tasks import TaskSupervisor
from shared.store.health import Health
from shared.store.queue import Queue
from shared.tenants.api_key import ApiKey

T = TypeVar("T")


class CallContext(Protocol):
    """What a job is made with (call.py), in a gateway and where lines of batches become jobs."""

    @property
    def settings(self) -> GatewaySettings:
        """Limits, and how long things are kept."""

    @property
    def factory(self) -> JobFactory:
        """Makes the jobs."""

    @property
    def fleet(self) -> FleetView:
        """Knows the models."""

    @property
    def steps(self) -> Mapping[str, EndpointStep]:
        """What APIs add to the calls of an endpoint, by the endpoint's path."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """Made once, when the process starts. An API adds its own objects then (Api.start)."""

    id: str
    settings: GatewaySettings
    queue: Queue
    factory: JobFactory
    admission: JobAdmission
    submitter: Submitter
    relay: Relay
    streams: StreamContext
    fleet: FleetView
    keys: KnownKeys
    health: Health
    tasks: TaskSupervisor
    metrics: GatewayMetrics
    prometheus: CollectorRegistry
    on_fleet_change: Callable[[], None]
    """To be called when an operator has changed the fleet."""
    steps: dict[str, EndpointStep] = field(default_factory=dict)
    """What an API adds to the calls of an endpoint, by the endpoint's path."""
    _added: dict[type, Any] = field(default_factory=dict)

    def add(self, made: object) -> None:
        """Keep an object that is not the core's; there is one of each class."""
        self._added[type(made)] = made

    def of(self, kind: type[T]) -> T:
        """The object of this class that was added."""
        found: T = self._added[kind]
        return found


def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


def _tenant(request: Request) -> str:
    tenant: str = request.state.tenant
    return tenant


def _key(request: Request) -> ApiKey:
    key: ApiKey = request.state.key
    return key


GatewayDep = Annotated[Gateway, Depends(_gateway)]
TenantDep = Annotated[str, Depends(_tenant)]
KeyDep = Annotated[ApiKey, Depends(_key)]
