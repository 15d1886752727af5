"""The relay: a gateway's subscription to its channel, dispatched to readers in memory.

Token path: Redis pub/sub (shared/store/subscription.py) -> here -> gateway/core/reader.py.

Pub/sub may lose messages. A job's log is the truth: readers read it where frames are missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from math import inf
from time import monotonic

from gateway.core.log_event import ReadMode
from gateway.core.reader import Reader
from shared.job.errors import StreamReset
from shared.job.frames import decode
from shared.job.job import shard_in
from shared.platform import logs
from shared.platform.metrics.gateway import GatewayMetrics
from shared.platform.tasks import run_together
from shared.store.interface import Store, StoreError
from shared.store.redis import keys
from shared.store.servers import Servers
from shared.store.subscription import Subscription

log = logging.getLogger("flotilla.relay")

_WAKEUP_INTERVAL_S = 0.1
"""Shortest time between two checks of all readers for due wake-ups."""
_POLL_S = 0.5
"""Between two polls of Redis for jobs that have ended."""
_WATCHES_AT_ONCE = 100
_RETRY_S = 0.2
_JOBS_PER_CALL = 1000
"""Most jobs in one poll, which blocks Redis while it runs."""


class Relay:
    """The subscriptions and readers of one gateway process. Start `run` as a task."""

    def __init__(
        self,
        queue: Store,
        servers: Servers,
        gateway_id: str,
        metrics: GatewayMetrics,
        buffer_bytes: int,
    ) -> None:
        """`buffer_bytes`: for one reader."""
        self.source = self._queue = queue
        self.buffer_bytes = buffer_bytes
        self.now = 0.0
        """When the latest message came, on the monotonic clock: one reading for all its frames."""
        self.gaps: dict[float, int] = {}
        """Seconds since the write before -> how many clients the current message was written to.
        Streams of one batch are written together, so this is one number for most."""
        self._metrics = metrics
        self._warn_malformed = logs.RareWarning(log)
        self._subscriptions = {
            shards: Subscription(
                servers,
                shards[0],
                keys.tokens_channel(gateway_id),
                self._dispatch,
                partial(self._on_connected, shards),
                partial(self._on_lost, shards),
                metrics.silent_subscriptions.inc,
            )
            for shards in servers.groups
        }
        self._subscription_of = {
            shard: subscription
            for shards, subscription in self._subscriptions.items()
            for shard in shards
        }
        self._gateway_id = gateway_id
        self._reconnected = {shards: asyncio.Event() for shards in servers.groups}
        self._readers: dict[bytes, tuple[Reader, ...]] = {}
        self.n_readers = Counter[int]()  # of the jobs of each shard
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = inf  # when the timer fires, on the monotonic clock
        metrics.open_streams.set_function(lambda: sum(map(len, self._readers.values())))

    async def run(self) -> None:
        """Receive until cancelled."""
        await run_together(
            *(subscription.run() for subscription in self._subscriptions.values()),
            *map(self._poll_ended_jobs, self._subscriptions),
            *map(self._watch_again, self._subscriptions),
        )

    async def connected(self) -> None:
        """Returns when all subscriptions are connected."""
        for subscription in self._subscriptions.values():
            await subscription.connected.wait()

    def is_subscribed(self, shard: int) -> bool:
        """Whether frames of the shard's jobs can arrive; else readers have nothing but the log."""
        return self._subscription_of[shard].connected.is_set()

    def is_served(self, shard: int) -> bool:
        """Whether jobs of the shard can be submitted now, and their frames arrive."""
        return self._subscription_of[shard].is_served

    # --- readers ---

    def open(self, job_id: str, mode: ReadMode, after: int = 0) -> Reader:
        """A reader of the job's log behind entry number `after`.

        Open it before the job is submitted or watched, and `close` it.
        """
        reader = Reader(self, job_id, mode, after)
        key = job_id.encode()
        self._readers[key] = (*self._readers.get(key, ()), reader)
        self.n_readers[shard_in(job_id)] += 1
        return reader

    def close(self, reader: Reader) -> None:
        """The reader gets no more frames."""
        key = reader.job_id.encode()
        self.n_readers[shard_in(reader.job_id)] -= 1
        readers = self._readers.pop(key)
        if len(readers) > 1:
            self._readers[key] = tuple(each for each in readers if each is not reader)

    def has_readers(self, job_id: str) -> bool:
        """Whether a client of this gateway follows the job."""
        return job_id.encode() in self._readers

    def fail_all(self, error: Exception) -> None:
        """End all readers: `next` of each raises `error`."""
        for readers in self._readers.values():
            for reader in readers:
                reader.fail(error)

    # --- what readers use (ReaderHost) ---

    def schedule_wakeup(self, at: float) -> None:
        """Call `on_wakeup` of readers that are due at `at`, on the monotonic clock, or just after.

        One timer serves all readers: one each would be made and cancelled with every request.
        """
        if at >= self._wake_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wake_at = at
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, at - monotonic()), self._wake_due_readers)

    def count_gap(self) -> None:
        """A frame was lost."""
        self._metrics.gaps.inc()

    def report_malformed(self, job_id: str, error: Exception) -> None:
        """Count and log a frame, or (with no job id) a message, that could not be decoded."""
        self._metrics.malformed.labels("frame").inc()
        self._warn_malformed("malformed frame of %s; reading the log: %r", job_id or "?", error)

    def _wake_due_readers(self) -> None:
        self._timer, self._wake_at = None, inf
        now, soonest = monotonic(), inf
        for readers in self._readers.values():
            for reader in readers:
                if reader.wake_at <= now:
                    reader.on_wakeup()
                else:
                    soonest = min(soonest, reader.wake_at)
        if soonest < inf:
            self.schedule_wakeup(max(soonest, now + _WAKEUP_INTERVAL_S))

    # --- from Redis ---

    def _dispatch(self, message: bytes) -> None:
        """Hand the frames of one message to their readers. Never raises."""
        self.now = monotonic()
        try:
            for frame in decode(message):
                for reader in self._readers.get(frame[0], ()):
                    reader.on_frame(frame)
        except Exception as error:
            # The rest of the message is skipped; the logs have its entries.
            self.report_malformed("", error)
            for shards in self._subscriptions:
                self._resync(shards)
        for gap, n_clients in self.gaps.items():
            self._metrics.itl.observe(gap, n_clients)
        self.gaps.clear()

    def _on_lost(self, shards: range) -> None:
        """Redis may have been restarted without its last writes."""
        for reader in self._readers_of(shards):
            reader.distrust()

    def _on_connected(self, shards: range) -> None:
        self._resync(shards)
        self._reconnected[shards].set()

    async def _watch_again(self, shards: range) -> None:
        """After each connect, watch the jobs of all readers: while this gateway was not subscribed
        it may have been taken for lost, and removed from their watchers."""
        while True:
            await self._reconnected[shards].wait()
            self._reconnected[shards].clear()
            try:
                for job_ids in self._awaited_jobs(shards).values():
                    for first in range(0, len(job_ids), _WATCHES_AT_ONCE):
                        part = job_ids[first : first + _WATCHES_AT_ONCE]
                        watches = [
                            self._queue.watch(i, self._gateway_id, follow=False) for i in part
                        ]
                        await run_together(*watches)
            except StoreError as error:
                log.debug("could not watch jobs again: %s", error)
                await asyncio.sleep(_RETRY_S)
                self._reconnected[shards].set()

    def _resync(self, shards: range) -> None:
        """Have all readers of these shards' jobs read the log: messages may have been missed."""
        for reader in self._readers_of(shards):
            reader.resync()

    def _readers_of(self, shards: range) -> Iterator[Reader]:
        for job_id, readers in self._readers.items():
            if shard_in(job_id.decode()) in shards:
                yield from readers

    async def _poll_ended_jobs(self, shards: range) -> None:
        """Find readers whose job has ended or is gone without a frame of it.

        A frame may be lost, and no frame is sent for a record that was deleted.
        """
        while True:
            await asyncio.sleep(_POLL_S)
            try:
                for shard, job_ids in self._awaited_jobs(shards).items():
                    for first in range(0, len(job_ids), _JOBS_PER_CALL):
                        part = job_ids[first : first + _JOBS_PER_CALL]
                        self._on_ended(await self._queue.ended(shard, part))
            except StoreError as error:
                log.debug("could not poll for ended jobs: %s", error)

    def _awaited_jobs(self, shards: range) -> dict[int, list[str]]:
        """Shard -> its jobs whose end a reader waits for."""
        found: dict[int, list[str]] = {}
        for readers in self._readers.values():
            job_id = readers[0].job_id
            shard = shard_in(job_id)
            if shard in shards and any(reader.awaits_end for reader in readers):
                found.setdefault(shard, []).append(job_id)
        return found

    def _on_ended(self, states: Mapping[str, str]) -> None:
        """`states`: job id -> terminal state, or `gone` without a record."""
        for job_id, state in states.items():
            for reader in self._readers.get(job_id.encode(), ()):
                if not reader.awaits_end:
                    continue
                if state == "gone":
                    reader.fail(StreamReset("The queue has lost this job."))
                else:
                    reader.resync()  # the log has the end
