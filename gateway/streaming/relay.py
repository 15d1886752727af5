"""The relay: a gateway process' subscription at each Redis server, fanned out to readers in memory.

Pub/sub is the fast path and may lose messages; the job's log is the truth, and what a reader
(reader.py) hands out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from time import monotonic

from msgpack.exceptions import UnpackException

from gateway.streaming.reader import Reader, ReadMode
from shared.api.errors import StreamReset
from shared.platform.metrics import GatewayMetrics
from shared.platform.redis_client import RedisError
from shared.platform.servers import server_index
from shared.platform.subscription import Subscription
from shared.protocol import keys
from shared.protocol.frames import decode
from shared.protocol.job import shard_in
from shared.queue.job_queue import JobQueue

log = logging.getLogger("flotilla.relay")

_COARSE_S = 0.1
"""Readers are not looked through more often than this."""
_LOOK_S = 0.5
"""How often Redis is asked which jobs have ended: a frame may be lost, a record deleted."""
_AT_ONCE = 1000
"""Most jobs in one such call, which blocks Redis while it runs."""


class Relay:
    """The subscriptions of one gateway process. Start `run` as a task."""

    def __init__(
        self,
        queue: JobQueue,
        urls: Sequence[str],
        gateway_id: str,
        metrics: GatewayMetrics,
        buffer_bytes: int,
    ) -> None:
        self.queue = queue
        self.metrics = metrics
        self.buffer_bytes = buffer_bytes
        self.now = 0.0
        """When the latest message came, on the monotonic clock: one reading for all its frames."""
        self.gaps: dict[float, int] = {}
        """How long clients that this message is_subscribed had got nothing -> how many of them; those of
        one batch hear at the same times, so it is one number for most."""
        channel = keys.tokens_channel(gateway_id)
        self._subscriptions = [
            Subscription(url, channel, self._dispatch, partial(self._resync_server, place))
            for place, url in enumerate(urls)
        ]
        self._readers: dict[bytes, tuple[Reader, ...]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = inf  # on the monotonic clock
        metrics.open_streams.set_function(lambda: sum(map(len, self._readers.values())))

    async def run(self) -> None:
        """Listen for ever; ends by cancellation."""
        places = range(len(self._subscriptions))
        await asyncio.gather(
            *(each.run() for each in self._subscriptions), *(self._look(place) for place in places)
        )

    async def connected(self) -> None:
        """Returns when frames can come from everywhere."""
        for subscription in self._subscriptions:
            await subscription.connected.wait()

    def is_subscribed(self, shard: int) -> bool:
        """Frames of the shard's jobs can come; without them readers live on the log alone."""
        place = server_index(shard, len(self._subscriptions))
        return self._subscriptions[place].connected.is_set()

    def open(self, job_id: str, want: ReadMode, after: int = 0) -> Reader:
        """A reader; open it before the job is submitted or watched, and `close` it."""
        reader = Reader(self, job_id, want, after)
        key = job_id.encode()
        self._readers[key] = (*self._readers.get(key, ()), reader)
        return reader

    def close(self, reader: Reader) -> None:
        """The reader's client has all it wants."""
        key = reader.job_id.encode()
        others = tuple(each for each in self._readers[key] if each is not reader)
        if others:
            self._readers[key] = others
        else:
            del self._readers[key]

    def fail_all(self, error: Exception) -> None:
        """End all readers: `next` of each raises `error`."""
        for readers in self._readers.values():
            for reader in readers:
                reader.fail(error)

    def schedule_wakeup(self, at: float) -> None:
        """Ring all whose time has come then, on the monotonic clock, or a little later."""
        # One timer for all readers: one each is made and cancelled with every request.
        if at >= self._wake_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wake_at = at
        self._timer = asyncio.get_running_loop().call_later(max(0.0, at - monotonic()), self._ring)

    def _ring(self) -> None:
        self._timer, self._wake_at = None, inf
        now, soonest = monotonic(), inf
        for readers in self._readers.values():
            for reader in readers:
                if reader.wake_at <= now:
                    reader.ring()
                else:
                    soonest = min(soonest, reader.wake_at)
        if soonest < inf:
            self.schedule_wakeup(max(soonest, now + _COARSE_S))

    async def _look(self, place: int) -> None:
        """Find the readers of jobs that are gone or have ended: a deleted record sends no frame,
        and a frame can be lost."""
        n_servers = len(self._subscriptions)
        while True:
            await asyncio.sleep(_LOOK_S)
            shards: dict[int, list[str]] = {}
            for readers in self._readers.values():
                job_id = readers[0].job_id
                shard = shard_in(job_id)
                if server_index(shard, n_servers) == place and any(each.waits for each in readers):
                    shards.setdefault(shard, []).append(job_id)
            try:
                for shard, job_ids in shards.items():
                    for first in range(0, len(job_ids), _AT_ONCE):
                        part = job_ids[first : first + _AT_ONCE]
                        self._ended(await self.queue.ended(shard, part))
            except (RedisError, OSError) as error:
                log.debug("ended jobs not looked for: %s", error)

    def _ended(self, states: Mapping[str, str]) -> None:
        for job_id, state in states.items():
            for reader in self._readers.get(job_id.encode(), ()):
                if not reader.waits:
                    continue
                if state == "gone":
                    reader.fail(StreamReset("The queue has lost this job."))
                else:
                    reader.resync()  # its log tells of the end

    def _resync_server(self, place: int) -> None:
        for job_id, readers in self._readers.items():
            if server_index(shard_in(job_id.decode()), len(self._subscriptions)) == place:
                for reader in readers:
                    reader.resync()

    def _dispatch(self, message: bytes) -> None:
        self.now = monotonic()
        try:
            for frame in decode(message):
                for reader in self._readers.get(frame[0], ()):
                    reader.feed(frame)
        except (ValueError, TypeError, LookupError, UnpackException) as error:
            # Not a worker's; whatever it stood in for, the log has it.
            log.error("malformed frames, reading the logs: %r", error)
            for place, _ in enumerate(self._subscriptions):
                self._resync_server(place)
        for gap, times in self.gaps.items():
            self.metrics.itl.observe(gap, times)
        self.gaps.clear()
