"""Adds the ledger of all shards up: the task `usage` of maintenance."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from shared.job.job import shard_of
from shared.job.log import Entry, prompt_tokens_in, tokens_in
from shared.platform.logs import RareWarning
from shared.store.interface import StoreError
from shared.store.queue import Queue
from shared.store.redis.usage_records import UsageRecords
from shared.tenants.usage import UsageEntry

log = logging.getLogger("flotilla.maintenance")

_AT_ONCE = 250
"""Redis does nothing else while they are added: 4 ms where each is of another tenant."""
_ROUND_S = 10.0
"""A round takes no longer, however much there is: it continues in the next."""
_PART_BYTES = 1 << 14


class UsageCounter:
    """An entry is in the sums once, also if the process is killed at any moment, or another one
    does the same work: the sums of a shard and the position in its ledger change together."""

    def __init__(self, queue: Queue, kept_days: int) -> None:
        """`kept_days`: how long the sums of a day are kept."""
        self._queue = queue
        self._records = UsageRecords(queue)
        self._kept_days = kept_days
        self._warn = RareWarning(log, 60.0)

    async def run(self) -> None:
        """One round. Raises StoreError, after all shards were tried."""
        positions = await self._records.positions()
        until = asyncio.get_running_loop().time() + _ROUND_S
        lost: StoreError | None = None
        for shard in range(self._queue.shards):
            try:
                await self._add_shard(shard, positions.get(shard, ""), until)
            except StoreError as error:  # the other shards go on
                lost = error
        if lost is not None:
            raise lost

    async def _add_shard(self, shard: int, position: str, until: float) -> None:
        while entries := await self._records.entries(shard, position, _AT_ONCE):
            counted = [await self._counted(each) for each in entries]
            if not await self._records.add(shard, position, counted, self._kept_days):
                return  # another process is at it
            position = entries[-1].id
            if asyncio.get_running_loop().time() > until:
                return

    async def _counted(self, entry: UsageEntry) -> UsageEntry:
        """The entry with the tokens that the job's log has, if no worker has reported any."""
        if entry.prompt_tokens is not None:
            return entry
        shard, prompt, output, after, more, found = shard_of(entry.job), 0, 0, 0, True, False
        while more and shard is not None:
            async with self._queue.reading_log(shard):
                part = await self._queue.read_log(entry.job, after, _PART_BYTES)
            prompts, outputs = _tokens(part.entries)
            prompt, output = prompt + prompts, output + outputs
            found, more = found or bool(part.entries), part.more and bool(part.entries)
            after = part.entries[-1].seq if part.entries else after
        if not found:
            self._warn(f"the tokens of {entry.job} are not known: its log is gone")
            return entry
        return entry._replace(prompt_tokens=prompt, cached_tokens=0, output_tokens=output)


def _tokens(entries: Sequence[Entry]) -> tuple[int, int]:
    """Tokens of the prompts and of the answer."""
    prompt = output = 0
    for entry in entries:
        prompt += prompt_tokens_in(entry.journal)
        output += tokens_in(entry.journal)
    return prompt, output
