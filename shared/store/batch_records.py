"""Batches in Redis: what clients ask for, and what the owner of a batch has done of it.

All of it lies in the first shard, the jobs of the lines in all shards. A batch is worked on by one
process at a time, its owner: every change carries the owner's epoch, and its number, so that it is
made once, or not at all if another process owns the batch by then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter

from shared.batches.batch import Batch, BatchStatus, LineError, Usage
from shared.job.errors import NotFound, TooManyBatches
from shared.job.record import pack
from shared.storage import Segment
from shared.store import keys
from shared.store.queue import Fenced, Queue, no_room
from shared.webhooks.webhook_delivery import notify_of

Which = Literal["output", "errors"]

_KEPT_S = 30 * 86_400
"""How long a batch is kept after its end."""
_MOST_KEPT = 10_000
"""Batches of one tenant. Above that the oldest go that have ended more than a day ago."""
_DELETABLE_MS = (_KEPT_S - 86_400) * 1000
_SHARD = 0
_MOST_COUNTED = 1000
_BATCH = TypeAdapter(Batch)


class LinePlace(NamedTuple):
    """A line that is in flight: where it is in the input, and how often it has failed."""

    offset: int
    length: int
    tries: int = 0

    def pack(self) -> str:
        """As the record has it."""
        return f"{self.offset} {self.length} {self.tries}"


class Change(NamedTuple):
    """What an owner changes in a batch, all of it or nothing."""

    status: BatchStatus | None = None
    set: Mapping[str, Any] = {}
    """Fields of Batch, or `next_line` and `next_offset`, and their new values."""
    add: Mapping[str, int] = {}
    """Counts, and how much is added to each."""
    lines: Mapping[int, LinePlace] = {}
    """Lines that are in flight from now on."""
    ended: Sequence[int] = ()
    """Lines that are no longer in flight."""
    ended_jobs: Sequence[str] = ()
    """Jobs of these lines, and of earlier tries: the owner deletes them after the change."""
    output: Sequence[Segment] = ()
    errors: Sequence[Segment] = ()


class OwnedBatch(NamedTuple):
    """A batch as its new owner finds it."""

    batch: Batch
    epoch: int
    step: int
    """Number of the last change."""
    next_line: int
    """The first line that was never in flight, from 1."""
    next_offset: int
    lines: dict[int, LinePlace]
    """Those that are in flight."""
    ended_jobs: Sequence[str]
    """Those of the last change that had some. The owner before may not have deleted them."""


class OpenBatch(NamedTuple):
    """A batch that has not ended."""

    id: str
    status: BatchStatus
    model: str
    """Of all its lines; empty: not known yet, or several."""
    idle_s: float
    """Since it has advanced."""


class BatchRecords:
    """The batches of a fleet. Methods raise StoreError."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._redis = queue.servers.of(_SHARD)

    # --- for clients ---

    async def create(self, batch: Batch, max_open: int) -> None:
        """Store a new batch. `max_open`: of one tenant.

        Raises TooManyBatches, NotFound, QuotaExceeded and RedisMemoryFull.
        """
        created_us = int(batch.created_at * 1e6)
        flat = [word for pair in _fields_of(batch).items() for word in pair]
        arguments = (
            batch.id, batch.tenant, batch.input_file_id, max_open, _MOST_KEPT, _DELETABLE_MS,
            created_us, *self._queue.rooms[_SHARD], *flat,
        )  # fmt: skip
        made = await self._queue.run("create_batch", _SHARD, *arguments)
        if isinstance(made, list):
            raise no_room(*made)
        if made == -2:
            raise TooManyBatches(
                f"You have {_MOST_KEPT:,} batches, and the oldest are open, or have ended within "
                "the last day; try again later."
            )
        if made < 0:
            raise NotFound(f"There is no file {batch.input_file_id!r} any more.")
        if not made:
            raise TooManyBatches(
                f"{max_open} batches have not ended yet; try again when one of them has."
            )

    async def get(self, tenant: str, batch_id: str) -> Batch | None:
        """The batch; None if the tenant has none with this id."""
        batch = _parse_batch(batch_id, await self._redis.hgetall(keys.first("batch", batch_id)))
        return batch if batch and batch.tenant == tenant else None

    async def list(self, tenant: str, limit: int, after: str = "") -> tuple[list[Batch], bool]:
        """The tenant's batches, newest first: at most so many, and whether there are more.

        `after`: those that are older than it. Raises NotFound.
        """
        index, start = keys.first("batches", tenant), 0
        if after:
            rank = await self._redis.zrevrank(index, after)
            if rank is None:
                raise NotFound(f"There is no batch {after[:64]!r}.")
            start = rank + 1
        found: list[Batch] = []
        while len(found) <= limit:
            ids = await self._redis.zrange(index, start, start + limit, desc=True)
            pipeline = self._redis.pipeline(transaction=False)
            for each in ids:
                pipeline.hgetall(keys.first("batch", each.decode()))
            raws = await pipeline.execute()
            pairs = zip(ids, raws, strict=True)  # one that has expired is swept off the list soon
            found += [batch for each, raw in pairs if (batch := _parse_batch(each.decode(), raw))]
            start += len(ids)
            if len(ids) <= limit:
                break
        return found[:limit], len(found) > limit

    async def cancel(self, tenant: str, batch_id: str) -> Batch | None:
        """Ask for the end of a batch; the batch afterwards. None if the tenant has no such batch.

        One that ends, or has ended, stays as it is.
        """
        await self._queue.run("cancel_batch", _SHARD, batch_id, tenant)
        return await self.get(tenant, batch_id)

    async def segments(self, batch_id: str, which: Which) -> tuple[Segment, ...]:
        """The committed segments of the output or of the errors."""
        word = "batch_output" if which == "output" else "batch_errors"
        key = keys.first(word, batch_id)
        return tuple(_parse_segment(each) for each in await self._redis.lrange(key, 0, -1))

    async def open_counts(self) -> dict[BatchStatus, int]:
        """How many open batches have each status. Of very many, the oldest are counted."""
        counts = {status: 0 for status in BatchStatus if not status.ended}
        for batch in await self.open_now():
            counts[batch.status] += 1
        return counts

    async def open_now(self) -> Sequence[OpenBatch]:
        """Those of all tenants that have not ended, oldest first; of very many, the oldest."""
        ids = (await self.open_batches())[:_MOST_COUNTED]
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.time()
        for batch_id in ids:
            key = keys.first("batch", batch_id)
            pipeline.hmget(key, "status", "model", "changed_us", "created_at")
        now_s, *raws = await pipeline.execute()
        found = []
        for batch_id, (status, model, changed_us, created_at) in zip(ids, raws, strict=True):
            if status is not None:
                since = int(changed_us) / 1e6 if changed_us else float(created_at)
                name = (model or b"").decode()
                idle_s = max(0.0, now_s - since)
                found.append(OpenBatch(batch_id, BatchStatus(status.decode()), name, idle_s))
        return [batch for batch in found if not batch.status.ended]

    # --- for owners ---

    async def open_batches(self) -> Sequence[str]:
        """Those of all tenants that have not ended, oldest first."""
        return [
            each.decode() for each in await self._redis.zrange(keys.first("open_batches"), 0, -1)
        ]

    async def own(
        self, batch_id: str, owner: str, lock_s: float, epoch: int | None = None
    ) -> tuple[int, int] | None:
        """Own the batch for so long: the epoch, and the number of the last change.

        `epoch`: of this owner, which goes on. None if another process owns the batch, or has done
        so since then, or it is not open.
        """
        arguments = (batch_id, owner, int(lock_s * 1000), "" if epoch is None else epoch)
        reply = await self._queue.run("own_batch", _SHARD, *arguments)
        return None if reply is None else (int(reply[0]), int(reply[1]))

    async def fence(self, batch_id: str, epoch: int) -> None:
        """Have all shards refuse lines that earlier owners submit."""
        for shard in range(self._queue.shards):
            await self._queue.run("fence_batch", shard, batch_id, epoch, _KEPT_S * 2000)

    async def read(self, batch_id: str, epoch: int, step: int) -> OwnedBatch | None:
        """A batch as its owner needs it; None if it is gone."""
        pipeline = self._redis.pipeline()
        pipeline.hgetall(keys.first("batch", batch_id))
        pipeline.hgetall(keys.first("batch_lines", batch_id))
        raw, places = await pipeline.execute()
        batch = _parse_batch(batch_id, raw)
        if batch is None:
            return None
        ended_jobs = places.pop(b"ended_jobs", b"").decode().split()
        lines = {int(line): LinePlace(*map(int, place.split())) for line, place in places.items()}
        next_line, offset = int(raw.get(b"next_line", 1)), int(raw.get(b"next_offset", 0))
        lines = dict(sorted(lines.items()))
        return OwnedBatch(batch, epoch, step, next_line, offset, lines, ended_jobs)

    async def change(self, batch_id: str, epoch: int, step: int, change: Change) -> BatchStatus:
        """Make a change; `step` is one more than the last one's. Returns the status afterwards.

        A batch that is to be cancelled goes neither to `in_progress` nor to `finalizing`. Raises
        Fenced if another process owns the batch.
        """
        places = [word for line, at in change.lines.items() for word in (str(line), at.pack())]
        arguments = (
            batch_id,
            epoch,
            step,
            change.status or "",
            pack([str(word) for pair in change.set.items() for word in pair]),
            pack([word for pair in change.add.items() for word in pair]),
            pack(places),
            pack([str(line) for line in change.ended]),
            pack([f"{each.bytes} {each.blob}" for each in change.output]),
            pack([f"{each.bytes} {each.blob}" for each in change.errors]),
            _KEPT_S * 1000 if change.status and change.status.ended else "",
            " ".join(change.ended_jobs),
        )
        reply = await self._queue.run("change_batch", _SHARD, *arguments)
        if reply is None:
            raise Fenced(f"another process owns {batch_id}")
        return BatchStatus(reply.decode())


def _fields_of(batch: Batch) -> dict[str, str | float]:
    """Of the record of a new batch."""
    _, *fields = Batch._fields[: Batch._fields.index("times")]
    return {name: getattr(batch, name) or "" for name in fields} | {
        "metadata": "" if batch.metadata is None else json.dumps(dict(batch.metadata)),
        "notify": notify_of("batch", batch.webhooks),
        "key": batch.key,
    }


def _parse_segment(packed: bytes) -> Segment:
    """A segment of its output or errors."""
    size, _, blob = packed.decode().partition(" ")
    return Segment(blob, int(size))


def pack_errors(errors: Sequence[LineError]) -> str:
    """The field `errors` of a batch."""
    return json.dumps(errors)


def _parse_batch(batch_id: str, raw: Mapping[bytes, bytes]) -> Batch | None:
    """A Batch from its record; None if there is none."""
    if b"tenant" not in raw:
        return None
    text = {name.decode(): value.decode() for name, value in raw.items() if value}
    fields: dict[str, Any] = {"id": batch_id, "metadata": None, "output_ttl_s": None}
    fields |= {name: text[name] for name in Batch._fields if name in text}
    fields |= {name: json.loads(text[name]) for name in ("metadata", "errors") if name in text}
    fields["usage"] = {name: text.get(name, 0) for name in Usage._fields}
    fields["times"] = {
        name.removeprefix("at:"): int(value) / 1e6
        for name, value in text.items()
        if name.startswith("at:")
    }
    return _BATCH.validate_python(fields)
