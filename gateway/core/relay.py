"""The relay: a gateway's subscription to its channel, dispatched to readers in memory.

Token path: Redis pub/sub (shared/store/subscription.py) -> here -> reader.py.

Pub/sub may lose messages. A job's log is the truth: readers read it where frames are missing. After
each connect the jobs of all readers are watched again, and where no frame comes for a while, the
positions of their logs are looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import islice
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from gateway.core.reader import Reader, ReadMode
from shared.job.errors import FlotillaError
from shared.job.job import shard_in
from shared.job.log import frames
from shared.platform import logs
from shared.platform.metrics.gateway import GatewayMetrics
from shared.platform.tasks import run_together
from shared.store import keys
from shared.store.errors import StoreError, StoreUnavailable
from shared.store.servers import Servers
from shared.store.subscription import Subscription

if TYPE_CHECKING:
    from shared.store.queue import Queue

log = logging.getLogger("flotilla.relay")

_WAKEUP_INTERVAL_S = 0.1
"""Shortest time between two checks of all readers for due wake-ups."""
_LOOK_S = 0.5
"""Between two rounds over all readers for those that get no frames."""
_RETRY_S = 0.2
_CONNECT_S = 1.0
"""Readers whose job can't be watched for want of a subscription are told so often."""
_DRAIN_S = 1.0
_CALLS_AT_ONCE = 100
_JOBS_PER_CALL = 500
"""Most jobs in one look, which blocks Redis while it runs."""


class Relay:
    """The subscriptions and readers of one gateway process. Start `run` as a task."""

    def __init__(
        self, queue: Queue, servers: Servers, gateway_id: str, metrics: GatewayMetrics
    ) -> None:
        self.queue = queue
        self.now = 0.0
        """When the latest message came, on the monotonic clock: one reading for all its frames."""
        self.gaps: dict[float, int] = {}
        """Seconds since the write before -> how many clients the current message was written to.
        Streams of one batch are written together, so this is one number for most."""
        self.n_readers = Counter[int]()
        """Of the jobs of each shard."""
        self._metrics = metrics
        self._warn_malformed = logs.RareWarning(log)
        self._groups = [
            _Group(self, servers, gateway_id, metrics, shards) for shards in servers.groups
        ]
        self._group_of = {shard: group for group in self._groups for shard in group.shards}
        self._readers: dict[bytes, tuple[Reader, ...]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = inf  # when the timer fires, on the monotonic clock
        metrics.open_streams.set_function(lambda: sum(map(len, self._readers.values())))

    async def run(self) -> None:
        """Receive until cancelled."""
        await run_together(*(group.run() for group in self._groups))

    async def connected(self) -> None:
        """Returns when all subscriptions are connected."""
        for group in self._groups:
            await group.subscription.connected.wait()

    def is_subscribed(self, shard: int) -> bool:
        """Whether frames of the shard's jobs can arrive. Only then may they be submitted."""
        return self._group_of[shard].subscription.connected.is_set()

    async def subscribed(self, shard: int) -> None:
        """Returns when `is_subscribed`."""
        await self._group_of[shard].subscription.connected.wait()

    def is_served(self, shard: int) -> bool:
        """Whether jobs of the shard can be submitted now, and their frames arrive."""
        return self._group_of[shard].subscription.is_served

    # --- readers ---

    def open(
        self,
        job_id: str,
        mode: ReadMode,
        *,
        after: int = 0,
        is_new: bool = False,
        with_events: bool = False,
    ) -> Reader:
        """A reader of the job's log behind entry number `after`; `close` it.

        `is_new`: open it before this gateway submits the job. For the others see Reader.
        """
        reader = Reader(self, job_id, mode, after=after, is_new=is_new, with_events=with_events)
        key = job_id.encode()
        self._readers[key] = (*self._readers.get(key, ()), reader)
        self.n_readers[reader.shard] += 1
        return reader

    def close(self, reader: Reader, *, leave: bool = False) -> None:
        """The reader gets no more frames.

        `leave`: its client has left a job that goes on; unless others of this gateway follow it,
        the gateway does not watch it any more. That outlasts the request.
        """
        key, group = reader.job_id.encode(), self._group_of[reader.shard]
        self.n_readers[reader.shard] -= 1
        group.unwatched.discard(reader)
        reader.close()
        readers = self._readers.pop(key)
        if len(readers) > 1:
            self._readers[key] = tuple(each for each in readers if each is not reader)
        elif leave and reader.queued is None:
            group.leave(reader.job_id)
        elif leave and reader.queued is not None:
            reader.queued.add_done_callback(partial(self._leave_queued, reader.job_id))

    def _leave_queued(self, job_id: str, queued: asyncio.Future[Any]) -> None:
        # What the queue has refused has no watchers; after an error of the store it may have.
        if not queued.cancelled() and not isinstance(queued.exception(), FlotillaError):
            self._group_of[shard_in(job_id)].leave(job_id)

    async def drain(self) -> None:
        """Stop watching the jobs that were left, if that can be done within a second."""
        with contextlib.suppress(TimeoutError, StoreError):
            async with asyncio.timeout(_DRAIN_S):
                await run_together(*(group.unwatch_left() for group in self._groups))

    def has_readers(self, job_id: str) -> bool:
        """Whether a client of this gateway follows the job."""
        return job_id.encode() in self._readers

    def fail_all(self, error: Exception) -> None:
        """End all readers: `next` of each raises `error`."""
        for readers in self._readers.values():
            for reader in readers:
                reader.fail(error)

    # --- what readers use ---

    def watch(self, reader: Reader, after_s: float = 0.0) -> None:
        """Have this gateway watch the reader's job, once that is in the queue; then tell it."""
        if after_s:
            asyncio.get_running_loop().call_later(after_s, self.watch, reader)
        elif reader.queued is not None and not reader.queued.done():
            reader.queued.add_done_callback(lambda _: self.watch(reader))
        elif reader.is_unwatched:  # it may have been closed
            self._group_of[reader.shard].watch(reader)

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
        self._warn_malformed("malformed frame of %s: %r", job_id or "?", error)

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

    def dispatch(self, message: bytes) -> None:
        """Hand the frames of one message to their readers. Never raises."""
        self.now = monotonic()
        try:
            for frame in frames(message):
                for reader in self._readers.get(frame[0], ()):
                    reader.on_frame(frame)
        except Exception as error:
            # The rest of the message is skipped; the logs have its entries.
            self.report_malformed("", error)
            for readers in self._readers.values():
                for reader in readers:
                    reader.resync()
        for gap, n_clients in self.gaps.items():
            self._metrics.itl.observe(gap, n_clients)
        self.gaps.clear()

    def readers_in(self, shards: range) -> Iterator[Reader]:
        """Those of jobs in these shards."""
        for readers in self._readers.values():
            if readers[0].shard in shards:
                yield from readers


class _Group:
    """The relay's subscription and calls to one Redis server, which some shards share."""

    def __init__(
        self,
        relay: Relay,
        servers: Servers,
        gateway_id: str,
        metrics: GatewayMetrics,
        shards: range,
    ) -> None:
        self.shards = shards
        self.unwatched: set[Reader] = set()
        """Readers that wait until the gateway watches their jobs."""
        self.left: set[str] = set()
        """Jobs whose clients have left, until the gateway watches them no more."""
        self._relay = relay
        self._gateway_id = gateway_id
        self._has_calls = asyncio.Event()
        self.subscription = Subscription(
            servers,
            shards[0],
            keys.tokens_channel(gateway_id),
            relay.dispatch,
            self._on_connected,
            on_silent=metrics.silent_subscriptions.inc,
        )

    async def run(self) -> None:
        """Receive until cancelled."""
        await run_together(self.subscription.run(), self._call(), self._look())

    def _on_connected(self) -> None:
        # Messages may have been missed, Redis may have lost entries, and who was not subscribed
        # may watch no more.
        for reader in self._relay.readers_in(self.shards):
            reader.resync()

    def watch(self, reader: Reader) -> None:
        """See Relay.watch."""
        self.unwatched.add(reader)
        self._has_calls.set()

    def leave(self, job_id: str) -> None:
        """See Relay.close."""
        self.left.add(job_id)
        self._has_calls.set()

    async def _call(self) -> None:
        while True:
            await self._has_calls.wait()
            self._has_calls.clear()
            try:
                await self.unwatch_left()
                await self._watch_unwatched()
            except StoreError as error:
                for reader in self.unwatched:
                    reader.store_failed(error)
                await asyncio.sleep(_RETRY_S)
                self._has_calls.set()

    async def unwatch_left(self) -> None:
        """Stop watching the jobs that were left. Raises StoreError."""
        queue, relay = self._relay.queue, self._relay
        while self.left:
            part = list(islice(self.left, _CALLS_AT_ONCE))
            gone = [job_id for job_id in part if not relay.has_readers(job_id)]
            await run_together(*(queue.unwatch(job_id, self._gateway_id) for job_id in gone))
            self.left.difference_update(part)

    async def _watch_unwatched(self) -> None:
        """Frames must not be published before they can arrive, so this waits for that."""
        queue = self._relay.queue
        while self.unwatched:
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await self.subscription.connected.wait()
            except TimeoutError:
                raise StoreUnavailable("not subscribed") from None
            part = list(islice(self.unwatched, _CALLS_AT_ONCE))
            self.unwatched.difference_update(part)
            try:
                found = await run_together(
                    *(queue.watch(r.job_id, self._gateway_id, follow=r.with_events) for r in part)
                )
            except StoreError:
                self.unwatched.update(reader for reader in part if reader.is_unwatched)
                raise
            for reader, watched in zip(part, found, strict=True):
                if reader not in self.unwatched:  # else it has to be watched once more
                    reader.on_watched(watched)

    async def _look(self) -> None:
        """Find readers that have missed frames without a loss of the connection."""
        queue = self._relay.queue
        while True:
            await asyncio.sleep(_LOOK_S)
            if not self.subscription.connected.is_set():
                continue
            quiet: defaultdict[int, list[Reader]] = defaultdict(list)
            now = monotonic()
            for reader in self._relay.readers_in(self.shards):
                if reader.is_to_be_looked_at(now):
                    quiet[reader.shard].append(reader)
            for shard, readers in quiet.items():
                for first in range(0, len(readers), _JOBS_PER_CALL):
                    part = readers[first : first + _JOBS_PER_CALL]
                    try:
                        found = await queue.positions(shard, [reader.job_id for reader in part])
                    except StoreError as error:
                        log.debug("could not look at the positions of jobs: %s", error)
                        break
                    for reader, position in zip(part, found, strict=True):
                        reader.on_position(position)
