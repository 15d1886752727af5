"""What has ended: a stream in each shard with an entry for each end of a job or batch.

The call that ends it writes the entry (scripts/common/ended.lua). Maintenance reads the stream for
the sums of use and for webhooks. The first shard has the position of both: it is compared and moved
in the call that stores what was made of the entries, so each is used once, whoever reads it, also
if a process is killed at any moment.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgpack

from shared.store import keys
from shared.store.queue import Queue

_SHARD = 0


class Owner(NamedTuple):
    """Whose use a job is, and of which model."""

    tenant: str
    key: str
    """The id of the API key; empty: it stands in the settings."""
    model: str
    """As the request named it."""


class Ended(NamedTuple):
    """The end of one job or batch."""

    entry: str
    """The id of the entry: milliseconds by Redis' clock, and a number."""
    id: str
    """Of the job or batch."""
    owner: Owner
    state: str
    notify: str
    """The webhook endpoints that get the event, as `notify_of` made it; empty: none."""
    reserved: str
    """The tokens that were taken from limits for it, and the day (rate_limits.py); empty: none."""
    prompt_tokens: int | None
    """None: no worker has reported any, they are to be counted in the job's log, or estimated by
    `begun_bytes`."""
    cached_tokens: int | None
    output_tokens: int | None
    queue_us: int
    """Until the first start."""
    engine_us: int
    """Of all attempts."""
    wasted_us: int
    """Of attempts that were taken back and have added nothing to the answer."""
    begun_bytes: int = 0
    """Of the body, if no worker has reported tokens and one has had the job."""

    @property
    def at_ms(self) -> int:
        """When it was: Unix milliseconds."""
        return _parts(self.entry)[0]

    @property
    def is_batch(self) -> bool:
        """A batch has used nothing: its jobs have."""
        return self.id.startswith("batch_")


class Reader(StrEnum):
    """Who reads the streams."""

    USAGE = "usage"
    WEBHOOKS = "webhooks"

    def of(self, shard: int) -> str:
        """The reader's position in a shard, as scripts know it."""
        return f"{self} {shard}"


class Unread(NamedTuple):
    """What a reader has not used yet."""

    entries: int
    """Of all shards; about so many."""
    oldest_s: float
    """How long the oldest of them has been there; 0: there is none."""


class EndedStreams:
    """The streams of all shards, as one reader reads them. Methods raise StoreError."""

    def __init__(self, queue: Queue, reader: Reader) -> None:
        self._queue = queue
        self._reader = reader

    async def positions(self) -> dict[int, str]:
        """Shard -> the last entry that was used."""
        found = await self._queue.servers.of(_SHARD).hgetall(keys.first("ended_read"))
        names = {shard: self._reader.of(shard).encode() for shard in range(self._queue.shards)}
        return {shard: found[name].decode() for shard, name in names.items() if name in found}

    async def read(self, shard: int, after: str, limit: int) -> list[Ended]:
        """The oldest entries of a shard behind `after`; empty: from the first on."""
        redis = self._queue.servers.of(shard)
        found = await redis.xrange(keys.of("ended", shard), _behind(after), count=limit)
        return [_parse(entry.decode(), fields[b"e"]) for entry, fields in found]

    async def unread(self) -> Unread:
        """For metrics and operators."""
        positions, shards = await self.positions(), range(self._queue.shards)
        pipeline = self._queue.servers.pipeline()
        for shard in shards:
            pipeline.of(shard).xlen(keys.of("ended", shard))
            # Those that all readers have used are deleted a moment later.
            pipeline.of(shard).xrange(
                keys.of("ended", shard), _behind(positions.get(shard, "")), count=1
            )
        replies = await pipeline.execute()
        oldest, now_s = replies[1::2], await self._queue.servers.of(_SHARD).time()
        ages = (now_s - _parts(entry.decode())[0] / 1000 for each in oldest for entry, _ in each)
        entries = sum(n for n, each in zip(replies[::2], oldest, strict=True) if each)
        return Unread(entries, max((0.0, *ages)))


async def delete_used(queue: Queue) -> None:
    """Delete the entries that all readers have used. Raises StoreError."""
    found = await queue.servers.of(_SHARD).hgetall(keys.first("ended_read"))
    pipeline = queue.servers.pipeline()
    for shard in range(queue.shards):
        used = [found.get(reader.of(shard).encode(), b"0-0").decode() for reader in Reader]
        first = _next_id(min(used, key=_parts))
        pipeline.of(shard).xtrim(keys.of("ended", shard), minid=first, approximate=False)
    await pipeline.execute()


def _parts(entry: str) -> tuple[int, int]:
    ms, _, number = entry.partition("-")
    return int(ms), int(number)


def _next_id(entry: str) -> str:
    ms, number = _parts(entry)
    return f"{ms}-{number + 1}"


def _behind(entry: str) -> str:
    return f"({entry}" if entry else "-"


def _parse(entry: str, packed: bytes) -> Ended:
    words = msgpack.unpackb(packed)
    subject, tenant, key, model, state, notify, reserved, prompt, cached, output, *times = words
    known = prompt is not False
    queue_us, engine_us, wasted_us = map(int, times)
    return Ended(
        entry,
        subject,
        Owner(tenant, key, model),
        state,
        notify,
        str(reserved),
        int(prompt) if known else None,
        int(cached) if known else None,
        int(output or 0) if known else None,
        queue_us,
        engine_us,
        wasted_us,
        begun_bytes=0 if known else int(cached),
    )
