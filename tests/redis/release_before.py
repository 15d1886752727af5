"""Gateways and workers of the release before turns, by its scripts: they know no tenants' sets.

`release_before.lua.gz` is what `loader.library()` returned there, at eae0ff0b.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redis import Redis

from shared.job.job import LeasedJob, NewJob
from shared.job.lanes import SHARED_LANES
from shared.job.packing import pack
from shared.store.redis import keys
from shared.store.redis.scripts.acquire import parse_jobs
from shared.store.redis.scripts.submit import pack_job, unique_token

_TEXT = Path(__file__).with_suffix(".lua.gz")


class ReleaseBefore:
    """Its scripts on one Redis, beside those of this release."""

    def __init__(self, store: Redis) -> None:
        text = gzip.decompress(_TEXT.read_bytes()).decode()
        self._prefix = text.splitlines()[0].partition("name=")[2]
        self._store: Any = store
        store.function_load(text, replace=True)

    def submit(self, jobs: Sequence[NewJob], max_depth: int) -> list[int]:
        """How many jobs wait before each of them, 0 if a worker has it already."""
        packed = pack([pack_job(job) for job in jobs])
        reply = self._call("submit", packed, max_depth, unique_token(), 0, 0)
        assert set(reply[::2]) <= {b"ok"}
        depths: list[int] = reply[1::2]
        return depths

    def acquire(
        self, pool: str, worker: str, count: int, lease_ms: int, slots: int
    ) -> list[LeasedJob]:
        """The jobs that a claim brings."""
        words = pool, worker, count, lease_ms, unique_token(), slots, "", *SHARED_LANES
        now_us, _, fence_token, _, *jobs = self._call("acquire", *words)
        return parse_jobs(now_us, fence_token, *jobs)

    def _call(self, script: str, *words: Any) -> list[Any]:
        reply: list[Any] = self._store.fcall(f"{self._prefix}_{script}", 1, keys.base(0), *words)
        return reply
