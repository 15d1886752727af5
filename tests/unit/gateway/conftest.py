"""Fixtures of the tests of the relay and its readers."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gateway.core.relay import Relay
from shared.platform.metrics.gateway import GatewayMetrics
from shared.store.servers import Servers
from tests.unit.gateway.reader_support import BUFFER, Log, RecordingWriter


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def relay(log: Log, registry: CollectorRegistry) -> Relay:
    queue: Any = log
    return Relay(queue, Servers("redis://nowhere"), "gw", GatewayMetrics(registry), BUFFER)


@pytest.fixture
def writer() -> RecordingWriter:
    return RecordingWriter()
