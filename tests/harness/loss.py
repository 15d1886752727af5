"""Redis loses a part of what it holds, as a Redis that is restored from an older copy does."""

from __future__ import annotations

from typing import Literal

from shared.job.job import shard_in
from shared.store import keys
from tests.harness.servers import RedisServer


def lose(server: RedisServer, job_id: str, what: Literal["log", "record", "all"]) -> bool:
    """Delete the log of a job, its record, or all that Redis has of it. Whether it was there."""
    shard = shard_in(job_id)
    with server.client() as client:
        if what == "log":
            return client.delete(keys.log(shard, job_id)) == 1
        if what == "record":
            return client.delete(keys.job(shard, job_id)) == 1
        found = list(client.scan_iter(f"{keys.base(shard)}*{job_id}*"))
        return bool(found) and client.delete(*found) > 0
