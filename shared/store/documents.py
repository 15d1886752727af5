"""Documents in Redis: what is not a job, such as files, webhook endpoints and API keys.

A document is an object as JSON, one of a kind. A change names the text that the caller has read,
and is made if that is still there; so it may be repeated after a lost reply, and of two changes at
the same time one is made first, and the other from what is there then. All of it lies in the first
shard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import TypeAdapter

from shared.job.errors import RedisUnavailable
from shared.platform.malformed import MalformedValues
from shared.store import keys
from shared.store.queue import NO_ROOM, Queue, Room, no_room

SHARD = 0
_AT_ONCE = 250
"""Documents of a list that are read or parsed at once: in between, other work goes on."""
_TRIES = 20
"""Of a change, while others change the same document."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """What all documents of a kind have in common."""

    name: str
    form: TypeAdapter[T]
    tenant: Callable[[T], str] = lambda _: ""
    """Whose list and limits it belongs to; empty: those of the fleet."""
    bytes: Callable[[T], int] = lambda _: 0
    """What it counts in the tenant's sum."""
    channel: str = ""
    """Changes are published here for processes that keep a copy of all; empty: not published."""


class LimitReached(Exception):
    """A document was not stored, as the tenant has so much already."""

    def __init__(self, what: str, has: int) -> None:
        super().__init__(f"{what}: {has}")
        self.what = what
        """`number` or `bytes`."""
        self.has = has


class InUse(Exception):
    """A document was not deleted: its `document_users` are not empty."""


class Documents(Generic[T]):
    """The documents of one kind. Methods raise StoreError."""

    def __init__(
        self, queue: Queue, kind: Kind[T], malformed: MalformedValues | None = None
    ) -> None:
        """`malformed` counts those that can't be read, which are as if they were not there."""
        self._queue = queue
        self._redis = queue.servers.of(SHARD)
        self._kind = kind
        self._malformed = malformed or MalformedValues()
        self._channel = keys.channel_at(SHARD, kind.channel) if kind.channel else ""

    async def now_s(self) -> float:
        """By the clock that decides what has expired."""
        now_s: float = await self._redis.time()
        return now_s

    # --- reading ---

    async def get(self, document_id: str) -> T | None:
        """One document; None if there is none."""
        text = await self._redis.hget(self._key("documents"), document_id)
        return self._parsed(document_id, text)

    async def some(self, ids: Sequence[str]) -> dict[str, T]:
        """Those of these ids that are there, in this order."""
        if not ids:
            return {}
        texts = await self._redis.hmget(self._key("documents"), ids)
        found = ((each, self._parsed(each, text)) for each, text in zip(ids, texts, strict=True))
        return {each: document for each, document in found if document is not None}

    async def known(self, ids: Sequence[str]) -> set[str]:
        """Those of these ids that are there, also if they can't be read."""
        texts = await self._redis.hmget(self._key("documents"), ids) if ids else ()
        return {each for each, text in zip(ids, texts, strict=True) if text is not None}

    async def all(self) -> dict[str, T]:
        """All of the kind, by id."""
        found = {}
        texts = await self._redis.hgetall(self._key("documents"))
        for number, (name, text) in enumerate(texts.items(), 1):
            document_id = name.decode()
            document = self._parsed(document_id, text)
            if document is not None:
                found[document_id] = document
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return found

    async def page(
        self,
        after: str,
        limit: int,
        *,
        tenant: str = "",
        newest_first: bool = True,
        wanted: Callable[[T], bool] = lambda _: True,
    ) -> tuple[list[T], bool] | None:
        """At most `limit` of the tenant's behind `after` (empty: from the first), and whether there
        are more; None if it has no such document, and has deleted none lately."""
        index, rank = self._key("document_index", tenant), -1
        if after:
            rank = await (self._redis.zrevrank if newest_first else self._redis.zrank)(index, after)
            if rank is None:
                place = await self._redis.get(self._key("gone", after))
                if place is None:
                    return None
                before = (f"({int(place)}", "+inf") if newest_first else ("-inf", f"({int(place)}")
                rank = await self._redis.zcount(index, *before) - 1
        found: list[T] = []
        while len(found) <= limit:
            ids = await self._redis.zrange(index, rank + 1, rank + _AT_ONCE, desc=newest_first)
            rank += len(ids)
            found += filter(wanted, (await self.some([each.decode() for each in ids])).values())
            if len(ids) < _AT_ONCE:
                break
        return found[:limit], len(found) > limit

    async def of_tenants(self, tenants: Collection[str]) -> dict[str, list[T]]:
        """All of each of these tenants, newest first: of kinds with few for each."""
        pipe = self._redis.pipeline(transaction=False)
        for tenant in tenants:
            pipe.zrevrange(self._key("document_index", tenant), 0, -1)
        ids = [each.decode() for found in await pipe.execute() for each in found]
        of_tenants: dict[str, list[T]] = {tenant: [] for tenant in tenants}
        for document in (await self.some(ids)).values():
            of_tenants[self._kind.tenant(document)].append(document)
        return of_tenants

    async def used(self, tenant: str) -> tuple[int, int]:
        """How many the tenant has, and their bytes."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.zcard(self._key("document_index", tenant))
        pipe.hget(self._key("document_bytes"), tenant)
        count, n_bytes = await pipe.execute()
        return count, int(n_bytes or 0)

    async def expired(self, limit: int) -> list[T]:
        """At most `limit` that have expired; they stay until they are deleted."""
        due = await self._redis.zrange(
            self._key("document_expiry"), 0, _micros(await self.now_s()),
            byscore=True, offset=0, num=limit,
        )  # fmt: skip
        return list((await self.some([each.decode() for each in due])).values())

    async def version(self) -> bytes:
        """Another word with each change of the kinds with this kind's channel; empty: there was
        none."""
        name = keys.first("document_version", self._channel)
        version: bytes | None = await self._redis.get(name)
        return version or b""

    # --- writing ---

    async def add(
        self,
        document_id: str,
        document: T,
        *,
        at: float = 0.0,
        expires_at: float | None = None,
        most: int = 0,
        most_bytes: int = 0,
    ) -> None:
        """Store a new one; again is no error. Raises LimitReached, QuotaExceeded, RedisMemoryFull.

        `at`: its place in the tenant's list, Unix seconds, as `expires_at`. `most`, `most_bytes`:
        the tenant's limits; 0: none. Without `most` there is always room for it.
        """
        text = self._kind.form.dump_json(document)
        expires_us = "" if expires_at is None else _micros(expires_at)
        further = (_micros(at), most, most_bytes, expires_us)
        room = self._queue.rooms[SHARD] if most else Room()
        await self._put(document_id, document, b"", text, further, room)

    async def change(
        self, document_id: str, change: Callable[[T], T], *, new: T | None = None, most: int = 0
    ) -> T | None:
        """Store what `change` makes of a document, and return it; None if there is none.

        `new`: what it makes it of if there is none; `most` is its limit then, as in `add`. `change`
        may be called several times. Raises LimitReached, and RedisUnavailable.
        """
        for _ in range(_TRIES):
            text = await self._redis.hget(self._key("documents"), document_id) or b""
            before = self._parsed(document_id, text)
            before = new if before is None else before
            if before is None:
                return None
            after = change(before)
            packed = self._kind.form.dump_json(after)
            if await self._put(document_id, after, text, packed, (0, most, 0, "")):
                return after
        raise RedisUnavailable(f"The {self._kind.name} was changed meanwhile; try again.")

    async def delete(self, document_id: str, wanted: Callable[[T], bool]) -> T | None:
        """Delete a document and return it; None if there is none, or none that is `wanted`.

        Raises InUse, and RedisUnavailable.
        """
        kind = self._kind
        for _ in range(_TRIES):
            text = await self._redis.hget(self._key("documents"), document_id)
            found = self._parsed(document_id, text)
            if found is None or not wanted(found):
                return None
            arguments = (
                kind.name, document_id, kind.tenant(found), text, self._channel,
                kind.bytes(found),
            )  # fmt: skip
            status = await self._queue.run("delete_document", SHARD, *arguments)
            if status == b"in_use":
                raise InUse
            if status == b"ok":
                return found
        raise RedisUnavailable(f"The {kind.name} was changed meanwhile; try again.")

    async def _put(
        self,
        document_id: str,
        document: T,
        before: bytes,
        after: bytes,
        further: Sequence[str | int],
        room: Room = Room(),  # noqa: B008
    ) -> bool:
        """Whether the text before was still there. Raises LimitReached, QuotaExceeded and
        RedisMemoryFull."""
        kind = self._kind
        arguments = (
            kind.name, document_id, kind.tenant(document), before, after, self._channel,
            kind.bytes(document), *further, *room,
        )  # fmt: skip
        status, has = await self._queue.run("put_document", SHARD, *arguments)
        if status in (b"number", b"bytes"):
            raise LimitReached(status.decode(), has)
        if status in NO_ROOM:
            raise no_room(status, has)
        return bool(status == b"ok")

    async def set(self, document_id: str, document: T) -> None:
        """Store it, whatever is there: for kinds without lists and limits, with one writer."""
        text = self._kind.form.dump_json(document)
        await self._redis.hset(self._key("documents"), document_id, text)

    async def forget_but(self, ids: Iterable[str]) -> int:
        """Delete those with other ids, of such a kind; returns how many."""
        there = await self._redis.hkeys(self._key("documents"))
        others = {each.decode() for each in there}.difference(ids)
        return int(await self._redis.hdel(self._key("documents"), *others)) if others else 0

    def _key(self, word: str, rest: str | None = None) -> str:
        kind = self._kind.name
        return keys.first(word, kind if rest is None else f"{kind}:{rest}")

    def _parsed(self, document_id: str, text: bytes | None) -> T | None:
        if not text:
            return None
        try:
            return self._kind.form.validate_json(text)
        except ValueError as error:
            self._malformed.skip(self._kind.name, repr(document_id[:100]), error)
            return None


def _micros(at: float) -> str:
    return f"{at * 1e6:.0f}"
