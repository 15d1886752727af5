"""What running batches needs, made once for a process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gateway.core.endpoint_step import EndpointStep
from gateway.core.fleet_view import FleetView
from gateway.core.job_factory import JobFactory
from gateway.gateway_settings import GatewaySettings
from shared.files.storage import Storage
from shared.store.redis.batch_records import BatchRecords
from shared.store.redis.file_records import FileRecords
from shared.store.redis.job_queue import JobQueue


class BatchContext(NamedTuple):
    """A CallContext with files and batches."""

    settings: GatewaySettings
    queue: JobQueue
    factory: JobFactory
    fleet: FleetView
    storage: Storage
    files: FileRecords
    records: BatchRecords
    steps: Mapping[str, EndpointStep] = {}

    @property
    def most_line_bytes(self) -> int:
        """Of one line: a body, and what is around it."""
        return self.settings.max_body_bytes + 4096
