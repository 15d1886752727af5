"""Connection pools of a Redis Cluster, one for each hash slot that the fleet uses.

Each new connection goes to the node that has the slot then; a connection to another node is ended
as soon as the map shows it, whoever uses it. ASK is not followed: a script names one key of its
shard, so it would run where the shard's other keys are not yet. A shard stands still while its slot
moves.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import weakref
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, TypeVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import Connection, SSLConnection
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AuthenticationError, ClusterDownError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from shared.platform.cluster_url import parse
from shared.platform.node_list import Address
from shared.platform.tasks import end
from shared.store.interface import StoreTimeout
from shared.store.redis.store_errors import SlotUnavailable, store_error

FLEET_TAG = "fleet"
"""The hash tag of what belongs to no shard."""
SLOT_WAIT_S = 5.0
"""How long a call waits for its slot to be served."""
_INTERVAL_S = 0.5
_FRESH_S = 0.1
"""A map that is younger is not read again."""
_ANSWER_S = 1.0
"""A node that does not answer for so long is passed over."""
_RETRY_S = 0.05
_REFUSED_S = 0.2
"""For so long a slot counts as not served after a node has refused it: callers that wait try more
often."""
_CLOSED = "the connections to the cluster are closed"

Reply = TypeVar("Reply")


async def once_served(call: Callable[[], Awaitable[Reply]]) -> Reply:
    """The reply of `call`, which is repeated while its slot is not served. Raises StoreTimeout
    after `SLOT_WAIT_S`."""
    give_up_at = time.monotonic() + SLOT_WAIT_S
    while True:
        try:
            return await call()
        except SlotUnavailable as error:
            if time.monotonic() >= give_up_at:
                raise StoreTimeout(f"no node has served the slot: {error}") from error
        await asyncio.sleep(_RETRY_S)


@cache
def shard_tags(shards: int) -> list[str]:
    """The hash tag of each shard: the lowest number whose slot is in the middle half of the shard's
    share of all slots, so that nodes with equal shares of the slots have equal shares of the
    shards. Never to be changed: jobs lie under these names."""
    tags: dict[int, str] = {}
    number = 0
    while len(tags) < shards:
        slot = key_slot(str(number).encode())
        shard, place = divmod(slot * shards, REDIS_CLUSTER_HASH_SLOTS)
        if REDIS_CLUSTER_HASH_SLOTS <= 4 * place < 3 * REDIS_CLUSTER_HASH_SLOTS:
            tags.setdefault(shard, str(number))
        number += 1
    return [tags[shard] for shard in range(shards)]


class SlotMap:
    """Which node has which slot. Of one event loop; it begins to look with the first question."""

    def __init__(self, url: str, **options: Any) -> None:
        """`options`: those of redis-py for each connection, without address and time-outs."""
        parts = parse(url)
        self.name = parts.name
        self.tls = parts.tls
        self.login: dict[str, Any] = {
            "username": parts.username,
            "password": parts.password,
            **parts.options,
        }
        self._options = options
        self._nodes = tuple(random.sample(parts.nodes, len(parts.nodes)))
        """Those to ask, the one that has answered last at first. In random order: an answer costs
        0.2 ms, and all processes ask."""
        self._ranges: list[tuple[int, int, Address]] = []
        self._pools: weakref.WeakSet[SlotPool] = weakref.WeakSet()
        self._client: Any = None  # of the first node
        self._read_at = -_FRESH_S
        self._reading = asyncio.Lock()
        self.wanted = asyncio.Event()
        """Set: the map is read at once."""
        self._task: asyncio.Task[None] | None = None

    def add(self, pool: SlotPool) -> None:
        """End its connections when its slot has moved."""
        self._pools.add(pool)

    async def address(self, slot: int) -> Address:
        """The master that has the slot. Raises redis-py's errors."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="slot map")
        try:
            await self._read()
        except (RedisError, OSError):
            if not self._ranges:
                raise
        found = self.known_address(slot)
        if found is None:
            raise RedisConnectionError(f"no node of the cluster {self.name} has slot {slot}")
        return found

    def known_address(self, slot: int) -> Address | None:
        """The same by the last reading; None without one."""
        for first, last, node in self._ranges:
            if first <= slot <= last:
                return node
        return None

    async def remove(self, pool: SlotPool) -> None:
        """The pool is closed. With the last one ends the map's own connection."""
        self._pools.discard(pool)
        if not self._pools and self._task is not None:
            await end([self._task])
            self._task = None
            await self._drop_client()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_INTERVAL_S):
                    await self.wanted.wait()
            await asyncio.sleep(max(0.0, self._read_at + _FRESH_S - time.monotonic()))
            self.wanted.clear()
            with contextlib.suppress(RedisError, OSError):
                await self._read()

    async def _read(self) -> None:
        async with self._reading:
            if time.monotonic() - self._read_at < _FRESH_S:
                return
            self._ranges = await self._ask_any()
            self._read_at = time.monotonic()
        for pool in self._pools:
            pool.end_moved()

    async def _ask_any(self) -> list[tuple[int, int, Address]]:
        problem: Exception = RedisConnectionError("it has no nodes")
        for node in self._nodes:
            try:
                async with asyncio.timeout(2 * _ANSWER_S):  # connect, ask
                    ranges = await self._ask(node)
            except (RedisError, OSError, TimeoutError) as error:
                await self._drop_client()
                problem = error
                continue
            others = dict.fromkeys([*(each for _, _, each in ranges), *self._nodes])
            others.pop(node, None)
            self._nodes = (node, *others)
            return ranges
        # The next reading begins with another node.
        self._nodes = (*self._nodes[1:], self._nodes[0])
        if isinstance(problem, ResponseError):
            problem = store_error(problem)
        raise RedisConnectionError(f"no node of the cluster {self.name} answers: {problem}")

    async def _ask(self, node: Address) -> list[tuple[int, int, Address]]:
        if self._client is None or self._nodes[0] != node:
            await self._drop_client()
            host, port = node
            self._client = Redis(
                host=host,
                port=port,
                ssl=self.tls,
                socket_timeout=_ANSWER_S,
                socket_connect_timeout=_ANSWER_S,
                max_connections=1,
                **self.login,
                **self._options,
            )
        return parse_slots(await self._client.execute_command("CLUSTER", "SLOTS"), node)

    async def _drop_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def parse_slots(reply: Any, asked: Address) -> list[tuple[int, int, Address]]:
    """`(first slot, last slot, master)` of each range in a reply to CLUSTER SLOTS of `asked`."""
    ranges = []
    for first, last, (host, port, *_), *_replicas in reply:
        name = host.decode() if isinstance(host, bytes) else host
        # A node that does not know its own name leaves it out: it is the host that was asked.
        ranges.append((int(first), int(last), (name or asked[0], int(port))))
    return ranges


class SlotConnection(Connection):
    """A connection to the master that has the slot of its pool when it connects."""

    def __init__(self, *, slot_pool: SlotPool, **options: Any) -> None:
        super().__init__(**options)
        self._slot_pool = slot_pool

    async def connect(self) -> None:
        """Connect, unless connected. Raises redis-py's errors, ClusterDownError if the master
        takes no connection: another node may have the slot soon."""
        if not self.is_connected:
            self.host, self.port = await self._slot_pool.address()
        try:
            await super().connect()  # type: ignore[no-untyped-call]
        except AuthenticationError:
            raise
        except (RedisConnectionError, OSError) as error:
            self._slot_pool.refused()
            raise ClusterDownError(f"the slot's master: {error}") from error
        if self._slot_pool.is_closed:  # meanwhile; it did not close this connection
            await self.disconnect(nowait=True)
            raise RedisConnectionError(_CLOSED)

    async def read_response(self, *args: Any, **options: Any) -> Any:
        """The next reply. Raises redis-py's errors."""
        try:
            return await super().read_response(*args, **options)
        except ResponseError as error:
            if isinstance(store_error(error), SlotUnavailable):
                self._slot_pool.refused()
            raise

    def abort(self) -> None:
        """End the connection at once; callers that wait for a reply get an error."""
        transport = getattr(getattr(self, "_writer", None), "transport", None)
        if transport is not None:
            transport.abort()


class SlotTlsConnection(SlotConnection, SSLConnection):
    """The same with TLS."""


class SlotPool(BlockingConnectionPool):
    """Connections to the present master of one slot; a caller waits while all are in use."""

    def __init__(self, slots: SlotMap, tag: str, **options: Any) -> None:
        """`tag`: a hash tag of the slot; `options`: those of redis-py's pool."""
        self.slots = slots
        self.name = f"{slots.name} {{{tag}}}"
        self._slot = key_slot(tag.encode())
        self._made: weakref.WeakSet[SlotConnection] = weakref.WeakSet()
        self._kind = SlotTlsConnection if slots.tls else SlotConnection
        self._refused_at = -_REFUSED_S
        self.is_closed = False
        super().__init__(connection_class=self._kind, **slots.login, **options)
        slots.add(self)

    def make_connection(self) -> Any:
        """A new connection, not yet connected."""
        made = self._kind(slot_pool=self, **self.connection_kwargs)
        self._made.add(made)
        return made

    async def aclose(self) -> None:
        """Close the connections. No further ones are made."""
        self.is_closed = True
        await super().aclose()
        await self.slots.remove(self)

    async def address(self) -> Address:
        """The master that has the slot. Raises redis-py's errors."""
        if self.is_closed:
            raise RedisConnectionError(_CLOSED)
        return await self.slots.address(self._slot)

    def refused(self) -> None:
        """A node does not serve the slot."""
        self._refused_at = time.monotonic()
        self.slots.wanted.set()

    @property
    def is_served(self) -> bool:
        """Whether no node has refused the slot lately."""
        return time.monotonic() - self._refused_at >= _REFUSED_S

    def end_moved(self) -> None:
        """End all connections to nodes that do not have the slot any more."""
        present = self.slots.known_address(self._slot)
        for connection in list(self._made):
            if present is not None and (connection.host, connection.port) != present:
                connection.abort()
