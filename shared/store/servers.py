"""The clients of the fleet's Redis, and which of them a shard has.

All shards of one Redis share one client, which is that of what belongs to no shard (workers,
models, decisions, maintenance), too: the `primary`. On a cluster each shard has a client of its
slot, and so has what belongs to none.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from typing import Any, Self, TypeVar
from weakref import WeakSet

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from shared.platform import redis_url
from shared.platform.redis_url import Address, RedisUrl
from shared.platform.tasks import end, run_together
from shared.store import keys
from shared.store.connection import Client, Connection, Server, SlotUnavailable
from shared.store.errors import StoreError, StoreTimeout, StoreUnavailable

FLEET_TAG = "fleet"
"""The hash tag of what belongs to no shard."""
SLOT_WAIT_S = 5.0
"""How long a call waits for its slot to be served."""
_FRESH_S = 0.1
"""A table of masters that is younger is not read again."""
_ANSWER_S = 1.0
"""A node that does not answer for so long is passed over."""
_RETRY_S = 0.05

Reply = TypeVar("Reply")
_Range = tuple[int, int, Address]
"""First slot, last slot, their master."""


def connect(url: str) -> Any:
    """A client; of a cluster, of the node that has what belongs to no shard. Raises ValueError.

    redis-py types every reply as bytes or str; ours are bytes.
    """
    parts = redis_url.parse(url)
    if parts.kind in {redis_url.SENTINEL, redis_url.CLUSTER}:
        return Client(Server(parts, Masters(parts), FLEET_TAG))
    return Client(Server(parts))


class Servers:
    """Clients for short calls; what subscribes or blocks makes a connection of its own to them."""

    def __init__(self, url: str, shards: int = 1) -> None:
        """The keys of this process are those of this Redis from then on. Raises ValueError."""
        self.shards = shards
        self.primary: Any
        self._of_groups: Sequence[Any]
        self.groups: Sequence[range] = [range(shards)]
        """The shards that share a client: what a process does once for each connection, as to
        subscribe, it does for each group."""
        if redis_url.is_cluster(url):
            tags, parts = shard_tags(shards), redis_url.parse(url)
            masters = Masters(parts)
            clients: list[Any] = [Client(Server(parts, masters, tag)) for tag in (FLEET_TAG, *tags)]
            self.primary, *self._of_groups = clients
            self.groups = [range(shard, shard + 1) for shard in range(shards)]
        else:
            tags, self.primary = [], connect(url)
            self._of_groups = clients = [self.primary]
        keys.use_tags(tags)
        self.all: Sequence[Any] = clients
        """Each client once."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def of(self, shard: int) -> Any:
        """The client of a shard. A number that no shard has finds a place without its jobs."""
        return self._of_groups[shard % len(self._of_groups)]

    def pipeline(self) -> ShardedPipeline:
        """An empty pipeline over all shards."""
        return ShardedPipeline(self._of_groups)

    async def infos(self) -> list[Mapping[str, Any]]:
        """INFO of each group's server; empty of one that can't be reached."""
        return await run_together(*map(_info, self._of_groups))

    async def close(self) -> None:
        """Close all connections."""
        for redis in self.all:
            await redis.aclose()


async def _info(redis: Any) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = await redis.info()
    except StoreError:
        return {}
    return found


class ShardedPipeline:
    """Commands to several shards, one pipeline and one round trip for each client; use it once."""

    def __init__(self, clients: Sequence[Any]) -> None:
        self._pipelines = [redis.pipeline(transaction=False) for redis in clients]
        self._pipeline_of_command: list[int] = []

    def of(self, shard: int) -> Any:
        """The pipeline of the shard; call exactly one command on it."""
        index = shard % len(self._pipelines)
        self._pipeline_of_command.append(index)
        return self._pipelines[index]

    async def execute(self, *, raise_on_error: bool = True, partial: bool = False) -> list[Any]:
        """Send everything. Returns the replies in the order of the commands.

        Without `raise_on_error` the error of a command that Redis refuses takes the place of the
        reply; with `partial` also that of a server that can't be reached.
        """
        calls = [_execute(each, raise_on_error, partial=partial) for each in self._pipelines]
        replies = await run_together(*calls) if len(calls) > 1 else [await calls[0]]
        by_pipeline = [iter(each) for each in replies]
        return [next(by_pipeline[index]) for index in self._pipeline_of_command]


async def _execute(pipeline: Any, raise_on_error: bool, *, partial: bool) -> list[Any]:
    count = len(pipeline)  # `execute` empties it; it sends nothing when there are no commands
    try:
        replies: list[Any] = await pipeline.execute(raise_on_error=raise_on_error)
    except StoreUnavailable as error:
        if not partial:
            raise
        return [error] * count
    return replies


# --- a master that may be another one later ---


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


class Masters:
    """Which server is the master of which slots, by the nodes of a cluster; by Sentinels, of all.

    They are asked for each new connection, and again when a call is refused or a connection is
    silent. What is connected to a server that is not the master any more is ended, whoever uses it.
    ASK is not followed: a script names one key of its shard, so it would run where the shard's
    other keys are not yet. A shard stands still while its slot moves. Of one event loop.
    """

    def __init__(self, url: RedisUrl) -> None:
        self.url = url
        self.members: WeakSet[Server] = WeakSet()
        self._nodes = tuple(random.sample(url.nodes, len(url.nodes)))
        """Those to ask, the one that has answered last at first. In random order: an answer costs
        0.2 ms, and all processes ask."""
        self._ranges: Sequence[_Range] = ()
        self._connection: Connection | None = None  # to the first node
        self._read_at = -_FRESH_S
        self._reading = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def read(self, slot: int) -> Address:
        """The present master of the slot. Raises StoreError."""
        try:
            await self._read()
        except StoreError:
            if not self._ranges:
                raise
        found = self.master(slot)
        if found is None:
            raise StoreUnavailable(f"no node of the cluster {self.url.name} has slot {slot}")
        return found

    def master(self, slot: int) -> Address | None:
        """The same by the last reading; None without one."""
        return next((node for first, last, node in self._ranges if first <= slot <= last), None)

    def look(self) -> None:
        """Read them again soon."""
        if self.members and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._look(), name="masters")

    async def _look(self) -> None:
        await asyncio.sleep(max(0.0, self._read_at + _FRESH_S - time.monotonic()))
        with contextlib.suppress(StoreError):
            await self._read()

    async def close(self) -> None:
        """No master is needed any more."""
        if self._task is not None:
            await end([self._task])
        self._drop_connection()

    async def _read(self) -> None:
        async with self._reading:
            if time.monotonic() - self._read_at < _FRESH_S:
                return
            self._ranges = await self._ask_any()
            self._read_at = time.monotonic()
        for member in self.members:
            member.end_moved()

    async def _ask_any(self) -> Sequence[_Range]:
        problem = "it has no nodes"
        for node in self._nodes:
            try:
                async with asyncio.timeout(2 * _ANSWER_S):  # connect, ask
                    ranges = await self._ask(node)
            except (StoreError, TimeoutError) as error:
                self._drop_connection()
                problem = str(error) or "no answer"
                continue
            others = dict.fromkeys((*self._known_nodes(ranges), *self._nodes))
            others.pop(node, None)
            self._nodes = (node, *others)
            return ranges
        # The next reading begins with another node.
        self._nodes = (*self._nodes[1:], self._nodes[0])
        raise StoreUnavailable(f"none of {self.url.name} answers: {problem}")

    async def _ask(self, node: Address) -> Sequence[_Range]:
        if not self.members:
            raise StoreUnavailable(f"the connections to {self.url.name} are closed")
        if self._connection is None or self._nodes[0] != node:
            self._drop_connection()
            self._connection = Connection(Server(self._url_of(node)), _ANSWER_S)
        if self.url.kind == redis_url.CLUSTER:
            return parse_slots(await self._connection.call("CLUSTER", "SLOTS"), node)
        found = await self._connection.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.url.service)
        if found is None:
            raise StoreUnavailable(f"no master is known as {self.url.service}")
        return [(0, REDIS_CLUSTER_HASH_SLOTS - 1, (found[0].decode(), int(found[1])))]

    def _url_of(self, node: Address) -> RedisUrl:
        if self.url.kind == redis_url.CLUSTER:
            return self.url._replace(kind=redis_url.ONE, nodes=(node,))
        return RedisUrl(
            redis_url.ONE,
            (node,),
            username=self.url.options.get("sentinel_username", ""),
            password=self.url.options.get("sentinel_password", ""),
        )

    def _known_nodes(self, ranges: Sequence[_Range]) -> list[Address]:
        """Nodes that can be asked, too, by an answer."""
        return [node for _, _, node in ranges] if self.url.kind == redis_url.CLUSTER else []

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def parse_slots(reply: Any, asked: Address) -> list[_Range]:
    """The ranges in a reply of `asked` to CLUSTER SLOTS."""
    ranges = []
    for first, last, (host, port, *_), *_replicas in reply:
        # A node that does not know its own name leaves it out: it is the host that was asked.
        ranges.append((int(first), int(last), (host.decode() if host else asked[0], int(port))))
    return ranges
