"""Reads jobs: records, requests and logs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from shared.job.errors import FlotillaError
from shared.job.job import Job, NewJob, checked_shard, shard_of
from shared.job.job_log import Entry, parse_segments, segments_behind
from shared.job.quotas import NO_QUOTAS, Quotas
from shared.job.record import WHOLE, read_job
from shared.job.replies import JoinedJob, LogPart
from shared.job.result import piece_field
from shared.store.connection import Argument
from shared.store.redis import keys
from shared.store.redis.scripts.runner import Scripts, job_states
from shared.store.redis.scripts.submit import parse_refusal
from shared.store.servers import Servers


class JobReader:
    """The jobs of a fleet, to be read. What has no docstring here has one in Store."""

    def __init__(self, servers: Servers, *, quotas: Quotas = NO_QUOTAS) -> None:
        """`quotas`: of each tenant in all shards together."""
        self.servers = servers
        self._scripts = [Scripts(servers.of(shards[0])) for shards in servers.groups]
        self.shards = servers.shards
        self.quotas = quotas.of_shard(self.shards)
        """Of each tenant in one shard."""
        self._reading_log = [asyncio.Lock() for _ in servers.groups]

    async def close(self) -> None:
        """Close the queue's own connections; `servers` stays open."""
        for scripts in self._scripts:
            await scripts.close()

    def scripts(self, shard: int) -> Scripts:
        """Those of the shard's server."""
        return self._scripts[shard % len(self._scripts)]

    def reading_log(self, shard: int) -> asyncio.Lock:
        return self._reading_log[shard % len(self._reading_log)]

    def run(self, name: str, shard: int, arguments: Sequence[Argument]) -> Coroutine[Any, Any, Any]:
        """Call a script; await the reply. Raises StoreError."""
        return self.scripts(shard).run(name, shard, arguments)

    async def get(self, job_id: str) -> Job | None:
        shard = shard_of(job_id)
        if shard is None:
            return None
        values = await self.servers.of(shard).hmget(keys.job(shard, job_id), WHOLE)
        return read_job(job_id, WHOLE, values)

    async def get_all(self, job_ids: Sequence[str]) -> list[Job | None]:
        """`get` of several jobs, in their order."""
        pipeline = self.servers.pipeline()
        for job_id in job_ids:
            shard = checked_shard(job_id)
            pipeline.of(shard).hmget(keys.job(shard, job_id), WHOLE)
        pairs = zip(job_ids, await pipeline.execute(), strict=True)
        return [read_job(job_id, WHOLE, values) for job_id, values in pairs]

    async def stored_request(self, job_id: str) -> tuple[bytes, str]:
        shard = checked_shard(job_id)
        body, up_to = await self.servers.of(shard).hmget(keys.job(shard, job_id), "body", "upto")
        return body or b"", (up_to or b"").decode()

    async def request_bytes(self, job_id: str) -> int:
        """The size of the body that `stored_request` has; 0: it is not kept."""
        shard = checked_shard(job_id)
        n_bytes: int = await self.servers.of(shard).hstrlen(keys.job(shard, job_id), "body")
        return n_bytes

    async def find_keyed(self, job: NewJob) -> JoinedJob | None:
        """The job that a call with this one's idempotency key has made; None if there is none.

        `submit` looks again. Raises IdempotencyKeyReused if that call had another body.
        """
        key = job.idempotency
        if key is None:
            return None
        found = await self.run("find_keyed", job.shard, (key.name, key.body_hash))
        reply = None if found is None else parse_refusal(job, *found)
        if isinstance(reply, FlotillaError):
            raise reply
        return reply if isinstance(reply, JoinedJob) else None

    async def read_log(
        self,
        job_id: str,
        after: int,
        most_bytes: int | None = None,
        most_parsed: float = math.inf,
    ) -> LogPart:
        shard = checked_shard(job_id)
        arguments = (job_id, after, "" if most_bytes is None else most_bytes)
        generation, more, *segments = await self.run("read_log", shard, arguments)
        generation, more = int(generation or 0), bool(more)
        behind = segments_behind(segments, after)
        size = sum(map(len, behind))
        if size > most_parsed:
            return LogPart(generation, [], more, size)
        return LogPart(generation, parse_segments(behind, after), more, size)

    async def last_entry(self, job_id: str) -> Entry | None:
        reply = await self.run("read_log", checked_shard(job_id), (job_id, "", ""))
        entries = parse_segments(reply[2:][-1:])
        return entries[-1] if entries else None

    async def read_piece(self, job_id: str, number: int) -> bytes | None:
        shard, field = checked_shard(job_id), piece_field(number)
        piece: bytes | None = await self.servers.of(shard).hget(keys.job(shard, job_id), field)
        return piece

    async def ended(self, shard: int, job_ids: Iterable[str]) -> dict[str, str]:
        return job_states(await self.run("find_ended", shard, tuple(job_ids)))
