"""Which maintenance there are, how often each is done, and that one process does it a round."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

from gateway.autoscaler import tick as autoscale
from gateway.maintenance.housekeeping import Housekeeping
from shared.fleet.autoscale_policy import parse_autoscale
from shared.fleet.registry import Registry
from shared.platform.settings import Settings, SettingsError
from shared.protocol import keys
from shared.queue.job_queue import JobQueue

log = logging.getLogger("flotilla.maintenance")

REPAIR = "repair"
PRUNE = "prune"
AUTOSCALE = "autoscale"
_LOCKED = 0.9
"""Of a round: a process whose beat comes a little early must not miss its turn."""

Task = Callable[[], Awaitable[None]]


def intervals(settings: Settings) -> dict[str, float]:
    """Task -> seconds between two rounds."""
    found = {REPAIR: 30.0, PRUNE: 600.0}
    if settings.autoscale:
        found[AUTOSCALE] = settings.autoscale_tick_s
    return found


class Schedule:
    """The maintenance process of one fleet."""

    def __init__(self, settings: Settings, queue: JobQueue) -> None:
        """Raises SettingsError."""
        self._queue = queue
        self._every_s = intervals(settings)
        registry = Registry(queue.servers.primary)
        keeper = Housekeeping(queue, registry)
        self._maintenance: Mapping[str, Task] = {
            REPAIR: keeper.repair,
            PRUNE: functools.partial(keeper.prune, _models(settings), self._every_s),
            AUTOSCALE: functools.partial(autoscale.tick, queue, registry, settings),
        }

    async def once(self, name: str) -> bool:
        """Do a maintenance task, unless another process has done it in this round; says whether.

        Raises what the task raises, redis' errors among it: the next round is the next try.
        """
        redis = self._queue.servers.primary
        lock_ms = int(self._every_s[name] * _LOCKED * 1000)
        if not await redis.set(keys.maintenance_lock(name), 1, nx=True, px=lock_ms):
            return False
        await self._maintenance[name]()
        now_s, _ = await redis.time()
        await redis.hset(keys.MAINTENANCE_RUNS, name, now_s)
        return True


def _models(settings: Settings) -> Collection[str]:
    try:
        return parse_autoscale(settings.autoscale)
    except ValueError as error:
        raise SettingsError(str(error)) from error
