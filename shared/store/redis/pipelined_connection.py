"""One connection to Redis on which calls do not wait for each other's replies.

redis-py's own call takes a connection out of a pool, writes, waits, reads and puts it back, at five
times the CPU time of the call itself. Here calls are written at once and replies are matched in
their order. redis-py connects (address, TLS, authentication, database); what carries commands and
replies from then on is a `Link` (redis_link.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis
from redis.asyncio import Redis

from shared.store.interface import StoreError, StoreTimeout, StoreUnavailable
from shared.store.redis.cluster import SlotPool
from shared.store.redis.redis_client import server_name
from shared.store.redis.redis_link import Link, open_link
from shared.store.redis.store_errors import OnReplica, SlotUnavailable

log = logging.getLogger("flotilla.redis")

Argument = str | bytes | int | float

_RETRY_S = 0.02
_MESSAGES = (b"message", b"smessage")


class PipelinedConnection:
    """Connects when it is first used, and again after a loss; calls in flight then fail."""

    def __init__(
        self,
        redis: Redis,
        timeout_s: float,
        on_message: Callable[[bytes], None] | None = None,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        """`timeout_s`: a connection without any reply for so long, while calls wait, is given up.

        `on_message` is called with each message on a subscribed channel, `on_error` with each
        error reply, before its caller gets it.
        """
        self._pool: Any = redis.connection_pool
        self._server = server_name(redis)
        self._timeout_s = timeout_s
        self._on_message = on_message
        self._on_error = on_error
        self._link: Link | None = None
        self._ended_link: Link | None = None  # the one before, to be released
        self._connecting = asyncio.Lock()
        self._failure: StoreError | None = None  # of the last attempt to connect
        self._failed_at = 0.0  # on the monotonic clock
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._loop: asyncio.AbstractEventLoop  # the connection's
        self._timeout: asyncio.TimerHandle | None = None
        self._n_replies = 0
        self._n_replies_checked = 0
        self.losses = 0
        """How many connections were lost: with each, Redis may have lost a command."""
        self.lost = asyncio.Event()
        """Set while there is no connection."""
        self.lost.set()

    async def call(self, *command: Argument) -> Any:
        """The reply, bytes undecoded. Raises the store's errors; after a StoreUnavailable
        the command may have been carried out.
        """
        if self._link is None:
            await self.connect()
        return await self.send(*command)

    def send(self, *command: Argument) -> asyncio.Future[Any]:
        """Write a command now; the future is its reply, as of `call`.

        Raises StoreUnavailable if there is no connection.
        """
        link = self._link
        if link is None:
            raise StoreUnavailable(f"Connection to Redis {self._server} lost")
        reply: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append(reply)
        data = hiredis.pack_command(command)  # type: ignore[arg-type]  # its stub says one
        try:
            link.write(data)
        except RuntimeError as error:
            # uvloop refuses to write on a connection that has ended, and may call `_on_lost` later,
            # or never if the connection ended while it was taken over from redis-py.
            self._on_lost(error)
            return reply
        if self._timeout is None:
            self._n_replies_checked = self._n_replies
            self._timeout = self._loop.call_later(self._timeout_s, self._check_replies)
        return reply

    async def close(self) -> None:
        """Calls in flight fail; the next one would connect again."""
        self._break(StoreUnavailable("closed"))
        await self._release()

    def give_up(self, reason: str) -> None:
        """End the connection at once; calls in flight fail. The next call connects again."""
        self._break(StoreUnavailable(reason))

    async def connect(self) -> None:
        """Connect, unless connected. Raises StoreError.

        An attempt that fails is that of all callers who wait for it, and of those who come within
        `_RETRY_S`: while a server is away, hundreds of streams wait for it.
        """
        if self._link is not None:
            return
        asked_at = time.monotonic()
        async with self._connecting:
            if self._link is not None:
                return
            if self._failure is not None and asked_at < self._failed_at + _RETRY_S:
                raise type(self._failure)(str(self._failure))
            await self._release()
            self._loop = asyncio.get_running_loop()
            try:
                self._link = await open_link(self._pool, self._on_reply, self._on_lost)
            except StoreError as error:
                self._failure, self._failed_at = error, time.monotonic()
                raise
            self._failure = None
            self.lost.clear()

    async def _release(self) -> None:
        link, self._ended_link = self._ended_link, None
        if link is not None:
            await link.closed()

    def _on_reply(self, reply: Any) -> None:
        """Hand a published message to `on_message`, any other reply to the call that waits."""
        if (
            self._on_message is not None
            and isinstance(reply, list)
            and reply
            and reply[0] in _MESSAGES
        ):
            try:
                self._on_message(reply[2])
            except Exception:
                log.exception("a published message could not be handled")
            return
        if not self._waiting:
            self._break(StoreUnavailable("Redis sent a reply that no call waits for"))
            return
        self._n_replies += 1
        waiting = self._waiting.popleft()
        if not isinstance(reply, Exception):
            if not waiting.done():
                waiting.set_result(reply)
            return
        if self._on_error is not None:
            self._on_error(reply)
        if not waiting.done():
            waiting.set_exception(reply)
        if isinstance(reply, SlotUnavailable) and isinstance(self._pool, SlotPool):
            self._pool.refused()  # which ends this connection if the slot has moved
        if isinstance(reply, OnReplica):
            # The master became a replica: connecting anew finds its successor.
            self._break(StoreUnavailable("connected to a replica"))

    def _on_lost(self, error: Exception | None) -> None:
        reason = error or "closed by server"
        self._break(StoreUnavailable(f"Connection to Redis {self._server} lost: {reason}"))

    def _check_replies(self) -> None:
        """Give the connection up if calls wait and nothing came since the timer was set."""
        self._timeout = None
        if not self._waiting:
            return
        if self._n_replies_checked == self._n_replies:
            self._break(StoreTimeout(f"Redis {self._server} does not answer"))
            return
        self._n_replies_checked = self._n_replies
        self._timeout = self._loop.call_later(self._timeout_s, self._check_replies)

    def _break(self, error: Exception) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.abort()
            self._ended_link = link
            self.losses += 1
        self.lost.set()
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
        waiting, self._waiting = self._waiting, deque()
        for reply in waiting:
            if not reply.done():
                reply.set_exception(error)
