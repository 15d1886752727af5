"""What running batches needs, made once for a process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple, Self

from gateway.core.endpoint_step import EndpointStep
from gateway.core.fleet_view import FleetView
from gateway.core.job_factory import JobFactory
from gateway.files.files import Files
from gateway.gateway_settings import GatewaySettings
from shared.batches.line_check import MOST_LINE_BYTES
from shared.fleet.pools import load_pools
from shared.platform.malformed import MalformedValues
from shared.store.batch_records import BatchRecords
from shared.store.health import Health
from shared.store.queue import Queue
from shared.store.servers import Servers


class BatchContext(NamedTuple):
    """A CallContext with files and batches."""

    settings: GatewaySettings
    queue: Queue
    factory: JobFactory
    fleet: FleetView
    files: Files
    records: BatchRecords
    max_depths: Mapping[str, int]
    """By pool; of other pools, the settings' `max_queue_depth`."""
    health: Health
    large_line: asyncio.Lock
    """Held while a large line is read, parsed and submitted: one at a time in a process."""
    steps: Mapping[str, EndpointStep] = {}

    @classmethod
    def of(cls, settings: GatewaySettings, servers: Servers) -> Self:
        """Raises SettingsError."""
        pools = load_pools(settings)
        queue = Queue(servers, quotas=settings.quotas, share_rules=settings.fair_shares.rules)
        fleet = FleetView.of(settings, pools, queue, MalformedValues())
        fleet.asks_for_unknown = False  # each of a million lines would
        return cls(
            settings=settings,
            queue=queue,
            factory=JobFactory(settings, pools, "", lambda shard: True),
            fleet=fleet,
            files=Files(queue, settings.storage_url),
            records=BatchRecords(queue),
            max_depths=pools.max_depths,
            health=Health(queue, settings.redis_high_watermark),
            large_line=asyncio.Lock(),
        )

    def max_depth(self, pool: str) -> int:
        """How many jobs may wait in a lane of the pool, in one shard."""
        return self.max_depths.get(pool, self.settings.max_queue_depth)

    @property
    def most_line_bytes(self) -> int:
        """Of one line: a body, and what is around it."""
        return min(self.settings.max_body_bytes, MOST_LINE_BYTES) + 4096
