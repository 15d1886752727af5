"""From Celery's blocking tasks to our async code: one event loop and one set of connections."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Callable

from gateway.maintenance import liveness_file
from gateway.maintenance.broker import celery_redis_url
from gateway.maintenance.schedule import Schedule
from shared.platform.redis_client import UNAVAILABLE, Redis, RedisError, connect
from shared.platform.servers import Servers
from shared.platform.settings import Settings
from shared.queue.job_queue import JobQueue

log = logging.getLogger("flotilla.maintenance")

STUCK_S = 120.0
"""No message for so long while Redis answers: Celery has stopped listening; it has been seen to."""
_LOOK_S = 5.0
_CLOSE_S = 2.0


class AsyncRunner:
    """A thread with an event loop, which also feels the process's liveness_file.

    `perform` is for another thread, one at a time.
    """

    def __init__(self, settings: Settings, longest_s: float, on_stuck: Callable[[], None]) -> None:
        self._settings = settings
        self._longest_s = longest_s
        self._on_stuck = on_stuck
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="maintenance", daemon=True
        )
        servers = Servers(settings.redis_url, settings.shard_redis_urls, max_connections=4)
        self._broker = connect(celery_redis_url(settings), max_connections=1)
        self._queue = JobQueue(servers, shards=settings.shards)
        self._schedule = Schedule(settings, self._queue)
        self._doing: concurrent.futures.Future[bool] | None = None
        self._watch: concurrent.futures.Future[None] | None = None
        self._closing = False
        self._last = time.monotonic()
        self._numb = False
        """It has been said that the liveness_file can't be felt."""

    def start(self) -> None:
        """From now on maintenance can be performed."""
        self._thread.start()
        self._watch = asyncio.run_coroutine_threadsafe(self._watching(), self._loop)

    def perform(self, name: str) -> None:
        """Do a maintenance task if it is its turn. Never raises: the next round is the next try."""
        self._last = time.monotonic()
        if self._closing:
            return
        self._doing = asyncio.run_coroutine_threadsafe(self._once(name), self._loop)
        if self._closing:  # since it was looked at; who interrupts may have found nothing to cancel
            self._doing.cancel()
        with contextlib.suppress(concurrent.futures.CancelledError):
            self._doing.result()
        self._last = time.monotonic()
        self._feel()

    def interrupt(self) -> None:
        """Give up what is being done, and do nothing more. May be called by a signal handler."""
        self._closing = True
        if self._doing is not None:
            self._doing.cancel()

    def close(self) -> None:
        """End the loop and its connections; it must have been started."""
        self.interrupt()
        if self._watch is not None:
            self._watch.cancel()
        ending = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        with contextlib.suppress(concurrent.futures.TimeoutError):
            ending.result(_CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()
        with contextlib.suppress(OSError):
            liveness_file.remove(self._settings)

    async def _close(self) -> None:
        await self._queue.close()
        await self._queue.servers.close()
        await self._broker.aclose(close_connection_pool=True)

    async def _once(self, name: str) -> bool:
        try:
            async with asyncio.timeout(self._longest_s):
                try:
                    return await self._schedule.once(name)
                except UNAVAILABLE:  # at rest, a connection does not notice that Redis has gone
                    return await self._schedule.once(name)
        except TimeoutError:
            log.warning("%s: not done in %g s; the next round goes on", name, self._longest_s)
        except (RedisError, OSError) as error:
            log.warning("%s: not done in this round: %s", name, error)
        except Exception:
            log.exception("%s: not done in this round", name)
        return False

    async def _watching(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            silent_s = time.monotonic() - self._last
            if silent_s < STUCK_S:
                self._feel()
            elif await _answers(self._broker):
                log.error("no message for %.0f s although Redis answers: ending", silent_s)
                self._on_stuck()
            else:
                self._last = time.monotonic()  # it gets the same time again once Redis is back
                self._feel()

    def _feel(self) -> None:
        try:
            liveness_file.touch(self._settings)
        except OSError as error:
            if not self._numb:
                log.warning("the health check will fail: %s", error)
            self._numb = True


async def _answers(redis: Redis) -> bool:
    try:
        await redis.ping()
    except (RedisError, OSError):
        return False
    return True
