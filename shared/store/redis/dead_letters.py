"""The dead letters: jobs that are out of attempts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shared.job.job import shard_of
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue

KINDS = ("attempts",)
"""What can be noted: a job that is out of attempts."""


_ID = re.compile(r"([0-9a-f]{3})-([0-9]{1,15})-([0-9]{1,9})")
_MOST = 2000
"""Letters that are read of one shard; its stream is trimmed to about half of that."""


class LetterId(NamedTuple):
    """Which letter: ordered by age, over all shards."""

    ms: int
    number: int
    shard: int

    @classmethod
    def parse(cls, text: str) -> LetterId | None:
        """From what `str` gives; None if it is something else."""
        match = _ID.fullmatch(text)
        return cls(int(match[2]), int(match[3]), int(match[1], 16)) if match else None

    def __str__(self) -> str:
        return f"{self.shard:03x}-{self.ms}-{self.number}"

    @property
    def entry(self) -> str:
        """Its id in the shard's stream."""
        return f"{self.ms}-{self.number}"


class Letter(NamedTuple):
    """One dead letter."""

    id: LetterId
    what: str
    """See `KINDS`."""
    subject: str
    """The id of the job, or the key."""
    reason: str
    values: Mapping[str, bytes]
    """What was set aside, 4 KiB of each value."""


class DeadLetters(NamedTuple):
    """How many there are."""

    kept: int
    """In the streams of all shards, which are trimmed."""
    written: Mapping[str, int]
    """Ever written, by what was set aside: see `KINDS`. Without those that are 0."""


async def count(queue: JobQueue) -> DeadLetters:
    """Count them. Raises StoreError if any server is away."""
    pipeline = queue.servers.pipeline()
    for shard in range(queue.shards):
        pipeline.of(shard).xlen(keys.dead_letters(shard))
        pipeline.of(shard).hgetall(keys.base(shard) + keys.DEAD_LETTER_COUNTS)
    kept, written = 0, Counter[str]()
    replies = iter(await pipeline.execute())
    for length, counts in zip(replies, replies, strict=True):
        kept += length
        for what, times in counts.items():
            written[what.decode()] += int(times)
    return DeadLetters(kept, written)


async def page(
    queue: JobQueue, what: str | None, before: LetterId | None, limit: int
) -> list[Letter]:
    """At most `limit` letters, newest first: of this kind, if given, and older than `before`.

    Raises StoreError if any server is away.
    """
    pipeline = queue.servers.pipeline()
    for shard in range(queue.shards):
        count = limit + 1 if what is None else _MOST
        newest = "+" if before is None else f"{before.ms}-{before.number}"
        pipeline.of(shard).xrevrange(keys.dead_letters(shard), newest, "-", count)
    found = []
    for shard, entries in enumerate(await pipeline.execute()):
        for entry, fields in entries:
            letter = _letter(shard, entry, fields)
            if what in (None, letter.what) and (before is None or letter.id < before):
                found.append(letter)
    return sorted(found, reverse=True)[:limit]


async def get(queue: JobQueue, letter_id: LetterId) -> Letter | None:
    """The letter; None if there is none. Raises StoreError."""
    if letter_id.shard >= queue.shards:
        return None
    redis, entry = queue.servers.of(letter_id.shard), letter_id.entry
    found = await redis.xrange(keys.dead_letters(letter_id.shard), entry, entry)
    return _letter(letter_id.shard, *found[0]) if found else None


async def drop(queue: JobQueue, letter_id: LetterId) -> bool:
    """Delete a letter; False if there is none. Raises StoreError."""
    if letter_id.shard >= queue.shards:
        return False
    return bool(await queue.run("drop_letter", letter_id.shard, (letter_id.entry,)))


async def replayable(queue: JobQueue, letters: Sequence[Letter]) -> set[str]:
    """The ids of the jobs out of attempts whose requests are there."""
    pipeline, jobs = queue.servers.pipeline(), []
    for letter in letters:
        shard = shard_of(letter.subject) if letter.what == "attempts" else None
        if shard is not None and shard < queue.shards:
            jobs.append(letter.subject)
            pipeline.of(shard).hexists(keys.job(shard, letter.subject), "body")
    replies = await pipeline.execute(raise_on_error=False)
    return {job_id for job_id, reply in zip(jobs, replies, strict=True) if reply is True}


def _letter(shard: int, entry: bytes, fields: Mapping[bytes, bytes]) -> Letter:
    ms, number = entry.split(b"-")
    words = {name.decode(errors="replace"): value for name, value in fields.items()}
    what, subject, reason = (
        words.pop(name, b"").decode(errors="replace") for name in ("what", "id", "reason")
    )
    values = {name.removeprefix("value:"): value for name, value in words.items()}
    return Letter(LetterId(int(ms), int(number), shard), what, subject, reason, values)
