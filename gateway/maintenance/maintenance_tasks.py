"""The maintenance tasks: what runs and how often, in one process of the fleet for each round.

A new periodic task is added here. Celery runs those of `celery_intervals` (celery_app.py); those of
`timer_intervals` must not wait for them and run on the main process's event loop (process.py).
A task may run twice in a round, or not at all: then the next round does the work.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from prometheus_client import CollectorRegistry

from gateway.maintenance.file_sweep import FileSweep
from gateway.maintenance.maintenance_settings import MaintenanceSettings
from gateway.maintenance.usage_counter import UsageCounter
from gateway.ops.autoscaler import tick as autoscaler
from shared.fleet.pools import Pools
from shared.job.errors import StorageUnavailable
from shared.platform.logs import RareWarning
from shared.platform.metrics.losses import UpkeepMetrics
from shared.store.errors import StoreError, StoreUnavailable
from shared.store.fleet_registry import Registry
from shared.store.health import Health
from shared.store.queue import Queue
from shared.store.servers import Servers
from shared.store.upkeep import MaintenanceRuns, Upkeep, prune, rewrite_logs

log = logging.getLogger("flotilla.maintenance")

T = TypeVar("T")

REPAIR = "repair"
PRUNE = "prune"
FILES = "files"
AUTOSCALE = "autoscale"
BATCHES = "batches"
WEBHOOKS = "webhooks"
USAGE = "usage"
TIMEOUT_S = 20.0
"""A round that takes longer is cancelled."""
_PRUNE_INTERVAL_S = 600.0
_FILES_INTERVAL_S = 600.0
_BATCHES_INTERVAL_S = 2.0
"""A little more than one call works (batch_work.py), so that other tasks have their turn."""
_WEBHOOKS_INTERVAL_S = 5.0
"""The work goes on between two calls (webhook_work.py); they only keep it going."""
_USAGE_INTERVAL_S = 1.0
"""Budgets lag behind by so much."""
_IN_EACH_PROCESS = (BATCHES, WEBHOOKS)
"""Processes share this work: each batch, and each delivery, has an owner."""
_LOCKED_SHARE = 0.9
"""Of an interval; less than 1, as a timer that fires a little early must not miss its round."""


def celery_intervals(settings: MaintenanceSettings) -> dict[str, float]:
    """The tasks that Celery runs -> seconds from one round to the next."""
    intervals = {
        REPAIR: settings.repair_interval_s,
        PRUNE: _PRUNE_INTERVAL_S,
        WEBHOOKS: _WEBHOOKS_INTERVAL_S,
    }
    if settings.storage_url:
        intervals |= {BATCHES: _BATCHES_INTERVAL_S, FILES: _FILES_INTERVAL_S}
    return intervals


def timer_intervals(settings: MaintenanceSettings, pools: Pools) -> dict[str, float]:
    """The tasks that run on a timer of the main process -> seconds from one round to the next."""
    intervals = {USAGE: _USAGE_INTERVAL_S}
    return intervals | ({AUTOSCALE: settings.autoscale_tick_s} if pools.autoscaled else {})


class MaintenanceTasks:
    """The tasks of one fleet, with their connections to Redis."""

    def __init__(
        self,
        settings: MaintenanceSettings,
        pools: Pools,
        further: Mapping[str, Callable[[], Awaitable[None]]] | None = None,
    ) -> None:
        """`further`: what BATCHES and WEBHOOKS do; a process that never runs these has none."""
        servers = Servers(settings.redis_url, settings.shards)
        self._queue = Queue(servers)
        self._intervals_s = celery_intervals(settings) | timer_intervals(settings, pools)
        registry = Registry(servers.primary)
        self.runs = MaintenanceRuns(servers)
        self._warnings = defaultdict[str, RareWarning](functools.partial(RareWarning, log))
        scaled = [pool.name for pool in pools.autoscaled]
        self._work: dict[str, Callable[[], Awaitable[None]]] = {
            REPAIR: functools.partial(rewrite_logs, servers),
            PRUNE: functools.partial(prune, self._queue, registry, scaled, self._intervals_s),
            USAGE: UsageCounter(self._queue, settings.usage_days).run,
            FILES: FileSweep(self._queue, settings.storage_url).sweep,
            AUTOSCALE: functools.partial(autoscaler.tick, self._queue, registry, settings, pools),
        }
        self._work |= further or {}

    async def run(self, name: str) -> None:
        """Run a task unless another process has done so in this round. Logs what goes wrong."""
        ran = False
        try:
            async with asyncio.timeout(TIMEOUT_S):
                ran = await self.run_once_per_round(name)
        except TimeoutError:
            log.warning("%s: cancelled after %g s; the next round continues", name, TIMEOUT_S)
        except (StoreError, StorageUnavailable) as error:
            self._warnings[name]("%s: failed in this round: %s", name, error)
        except Exception:
            log.exception("%s: failed in this round", name)
        if ran:
            self._warnings[name].over("%s: runs again", name)

    async def run_once_per_round(self, name: str) -> bool:
        """Run a task; returns False if another process has done so in this round.

        Raises what the task raises, StoreError among it.
        """
        round_s = self._intervals_s[name] * _LOCKED_SHARE
        begin = functools.partial(self.runs.begin, name, round_s)
        if name not in _IN_EACH_PROCESS and not await _tried_twice(begin):
            return False
        await _tried_twice(self._work[name])
        await self.runs.done(name)
        return True

    async def watch_health(self) -> None:
        """Look at the Redis servers until cancelled. Raises FormatMismatch."""
        await Health(self._queue).run()

    async def keep_up(self) -> None:
        """Take the jobs of lost workers, and end those whose time is over, until cancelled."""
        metrics = UpkeepMetrics(CollectorRegistry())  # not exported: this process serves none
        await Upkeep(self._queue, metrics).run()

    async def close(self) -> None:
        """Close all connections."""
        await self._queue.close()
        await self._queue.servers.close()


async def _tried_twice(work: Callable[[], Awaitable[T]]) -> T:
    try:
        return await work()
    except StoreUnavailable:  # an idle connection fails after a restart of Redis
        return await work()
