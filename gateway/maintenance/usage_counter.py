"""Adds up what has ended in all shards: the task `usage` of maintenance."""

from __future__ import annotations

import asyncio
import logging

from shared.job.log import START, EventName, prompt_tokens_in, tokens_in
from shared.platform.logs import RareWarning
from shared.store.ended import Ended, EndedStreams, Reader, delete_used
from shared.store.errors import StoreError
from shared.store.fleet_registry import Registry
from shared.store.queue import Queue
from shared.store.usage import UsageRecords
from shared.tenants.rate_limits import estimate

log = logging.getLogger("flotilla.maintenance")

_AT_ONCE = 250
"""Redis does nothing else while they are added: 4 ms where each is of another tenant."""
_ROUND_S = 10.0
"""A round takes no longer, however much there is: it continues in the next."""
_PAGE_ENTRIES = 500
"""Of a log, about 16 KB of tokens."""


class UsageCounter:
    """Adds to the sums of use."""

    def __init__(self, queue: Queue, kept_days: int) -> None:
        """`kept_days`: how long the sums of a day are kept."""
        self._queue = queue
        self._streams = EndedStreams(queue, Reader.USAGE)
        self._records = UsageRecords(queue)
        self._kept_days = kept_days
        self._registry = Registry(queue.servers.primary)
        self._contexts: dict[str, int] = {}  # model -> its context; as of this round
        self._warn = RareWarning(log, 60.0)

    async def run(self) -> None:
        """One round. Raises StoreError, after all shards were tried."""
        positions, self._contexts = await self._streams.positions(), {}
        until = asyncio.get_running_loop().time() + _ROUND_S
        lost: StoreError | None = None
        for shard in range(self._queue.shards):
            try:
                await self._add_shard(shard, positions.get(shard, ""), until)
            except StoreError as error:  # the other shards go on
                lost = error
        if lost is not None:
            raise lost
        await delete_used(self._queue)

    async def _add_shard(self, shard: int, position: str, until: float) -> None:
        while ended := await self._streams.read(shard, position, _AT_ONCE):
            counted = [await self._counted(each) for each in ended]
            if not await self._records.add(shard, position, counted, self._kept_days):
                return  # another process is at it
            position = ended[-1].entry
            if asyncio.get_running_loop().time() > until:
                return

    async def _counted(self, job: Ended) -> Ended:
        """With the tokens that the job's log has, if no worker has reported any."""
        if job.prompt_tokens is not None or job.is_batch:
            return job
        prompt, output, at, found = 0, 0, START, False
        while new := (await self._queue.read(job.id, at, _PAGE_ENTRIES))[at != START :]:
            for entry in new:
                if entry.event == EventName.RESTARTED:
                    prompt = output = 0
                prompt += prompt_tokens_in(entry.journal)
                output += tokens_in(entry.journal)
            at, found = new[-1].position, True
        if not found:
            self._warn(f"the tokens of {job.id} are not known: its log is gone")
            return job
        if job.begun_bytes and not (prompt or output):  # tokens of prompts come with a first one
            prompt = estimate(job.begun_bytes, await self._context(job.owner.model), 0)
        return job._replace(prompt_tokens=prompt, cached_tokens=0, output_tokens=output)

    async def _context(self, model: str) -> int:
        """That of a model in tokens; of an unknown one the longest; 0 if none is known."""
        if not self._contexts:
            found = await self._registry.models()
            self._contexts = {
                name: info.card.get("max_model_len") or 0 for name, info in found.items()
            }
        return self._contexts.get(model) or max(self._contexts.values(), default=0)
