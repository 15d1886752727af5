"""A worker's subscriptions to its control channel, one for the shards of each Redis server.

The detector finds by them that the worker has ended: its channel has no subscriber then
(shared/store/redis/detector.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from shared.platform.tasks import run_together
from shared.store.interface import StoreError
from shared.store.redis import keys
from shared.store.redis.detector import INTERVAL_S
from shared.store.servers import Servers
from shared.store.subscription import Subscription
from worker.core.control_channel import ControlChannel

_SUBSCRIBE_S = 5.0


class ControlSubscriptions:
    """Start `run` as a task; messages go to `control`."""

    def __init__(
        self,
        servers: Servers,
        worker_id: str,
        control: ControlChannel,
        on_silent: Callable[[], None],
    ) -> None:
        channel = keys.control_channel(worker_id)
        callbacks = (control.on_message, control.on_reconnect, lambda: None, on_silent)
        self._subscriptions = [
            Subscription(servers, shards[0], channel, *callbacks) for shards in servers.groups
        ]

    async def run(self) -> None:
        """Receive until cancellation."""
        await run_together(*(each.run() for each in self._subscriptions))

    async def detectable(self) -> None:
        """Return when all detectors have seen the subscriptions, so that the end of this process
        is noticed at once; or after a while if Redis does not answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SUBSCRIBE_S):
                for subscription in self._subscriptions:
                    await subscription.connected.wait()
                await asyncio.sleep(2 * INTERVAL_S)

    async def catch_up(self) -> None:
        """Return when all messages published before have been received, as far as possible."""
        for subscription in self._subscriptions:
            with contextlib.suppress(StoreError):
                await subscription.catch_up()
