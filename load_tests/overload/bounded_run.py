"""More jobs than there is room for: what is accepted is done, what is refused says why."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from load_tests.harness.fleet import Fleet, FleetShape
from load_tests.harness.session import Progress
from load_tests.systems.engine import CHAT_PATH, request_body
from shared.store.redis import keys

_TENANTS = 8
_AT_ONCE = 32
_WAITING = 100
_TOKENS = 40
_STEP_MS = 20.0
_KEPT_S = 6.0
"""A job that has ended makes room again after this time, as what is kept would fill Redis."""
_POLL_S = 0.25
_DEADLINE_S = 300.0
_KNOWN_S = 3.0
"""By then after the first end gateways know how long jobs take, as workers announce it."""
_UNTIMED = 0.05
"""The part of refusals that may lack a time: a worker may be late to announce itself."""
_SMALL, _LARGE = 200, 40_000
"""Bytes that are added to the bodies: at first few, as the lanes fill, then many, as Redis does."""
EXPECTED = frozenset({"queue_full", "too_many_waiting", "redis_memory_full"})
"""Codes of refusals."""
_ENDED = {b"completed", b"failed", b"cancelled", b"expired"}


@dataclass(slots=True)
class BoundedResult:
    """What became of the jobs."""

    accepted: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    """By code."""
    untimed: int = 0
    """Refusals without `retry-after`, once gateways could know how long jobs take."""
    ended: dict[str, int] = field(default_factory=dict)
    """Accepted jobs by state; `open` if they have not ended."""
    peak: float = 0.0
    """Most of Redis' memory that was used, as a share of its limit."""
    oom: int = 0
    """Commands that Redis has refused for want of memory."""
    seconds: float = 0.0

    @property
    def problems(self) -> list[str]:
        """What must not be."""
        found = [f"{code}: {n}" for code, n in self.refused.items() if code not in EXPECTED]
        lost = self.accepted - self.ended.get("completed", 0)
        found += [f"{lost} accepted jobs are not completed: {self.ended}"] * (lost != 0)
        found += [f"Redis has refused {self.oom} commands"] * (self.oom > 0)
        found += [f"Redis used {self.peak:.0%} of its memory"] * (self.peak >= 1)
        most = _UNTIMED * sum(self.refused.values())
        return found + [f"{self.untimed} refusals without a time"] * (self.untimed > most)

    @property
    def unmet(self) -> list[str]:
        """Bounds that no job has met, as clients or the machine were too slow."""
        return [f"no job met the bound {code}" for code in EXPECTED - self.refused.keys()]


class BoundedRun:
    """A fleet with small bounds, and clients that do not come back."""

    def __init__(self, folder: Path, jobs: int, megabytes: int, kept_s: float = _KEPT_S) -> None:
        """`megabytes`: what Redis may use beside what it uses when nothing is stored; `kept_s`: how
        long it keeps a job that has ended."""
        tenants = ",".join(f"t{n}:key-{n}" for n in range(_TENANTS))
        settings: Mapping[str, Any] = {
            "api_keys": tenants,
            "max_queue_depth": _WAITING,
            "max_waiting_jobs": _WAITING // 2,
            "result_ttl_s": kept_s,
        }
        shape = FleetShape(gateways=2, step_ms=_STEP_MS, settings=settings)
        self._fleet = Fleet(folder / "fleet", shape)
        self._jobs = jobs
        self._all_are_sent = False
        self._first_end_at: float | None = None
        self._waiting: set[str] = set()
        self._result = BoundedResult()
        client = self._fleet.client
        self._limit = int(client.info("memory")["used_memory"]) + (megabytes << 20)
        client.config_set("maxmemory", self._limit)

    def run(self, progress: Progress) -> BoundedResult:
        """Submit all jobs, and wait for the end of those that were accepted."""
        began = time.monotonic()
        try:
            asyncio.run(self._run(progress))
            errors: dict[str, Any] = self._fleet.client.info("errorstats")
            self._result.oom = int(errors.get("errorstat_OOM", {}).get("count", 0))
        finally:
            self._fleet.close()
        self._result.seconds = time.monotonic() - began
        return self._result

    async def _run(self, progress: Progress) -> None:
        limits = httpx.Limits(max_connections=_AT_ONCE)
        async with httpx.AsyncClient(timeout=60, limits=limits) as client:
            numbers = iter(range(self._jobs))
            watching = asyncio.create_task(self._watch())
            await asyncio.gather(*(self._submit_all(client, numbers) for _ in range(_AT_ONCE)))
            self._all_are_sent = True
            progress(f"accepted {self._result.accepted}, refused {self._result.refused}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(watching, _DEADLINE_S)
            if self._waiting:
                self._result.ended["open"] = len(self._waiting)

    async def _submit_all(self, client: httpx.AsyncClient, numbers: Any) -> None:
        for n in numbers:
            await self._submit(client, n)

    async def _submit(self, client: httpx.AsyncClient, n: int) -> None:
        # Half of the jobs are of one tenant, whose own bound is reached first.
        tenant = n % _TENANTS if n % 2 else 0
        body = request_body(tokens=_TOKENS, stream=False)
        body |= {"user": "u" * (_SMALL if n < self._jobs // 2 else _LARGE)}
        url = self._fleet.urls[n % len(self._fleet.urls)]
        wanted = {"endpoint": CHAT_PATH, "body": body}
        headers = {"authorization": f"Bearer key-{tenant}"}
        answer = await client.post(f"{url}/jobs", json=wanted, headers=headers)
        if answer.status_code == 202:
            self._result.accepted += 1
            self._waiting.add(answer.json()["id"])
            return
        code = answer.json()["error"]["code"]
        self._result.refused[code] = self._result.refused.get(code, 0) + 1
        known = self._first_end_at is not None and time.monotonic() > self._first_end_at + _KNOWN_S
        if known and code in EXPECTED and "retry-after" not in answer.headers:
            self._result.untimed += 1

    async def _watch(self) -> None:
        """Note the ends of jobs, before they are gone, and the memory of Redis, to the last end."""
        while self._waiting or not self._all_are_sent:
            await asyncio.to_thread(self._look)
            await asyncio.sleep(_POLL_S)

    def _look(self) -> None:
        client, ids = self._fleet.client, list(self._waiting)
        used = int(client.info("memory")["used_memory"])
        self._result.peak = max(self._result.peak, used / self._limit)
        pipeline = client.pipeline(transaction=False)
        for job_id in ids:
            pipeline.hget(keys.job(0, job_id), "state")
        for job_id, state in zip(ids, pipeline.execute() if ids else (), strict=True):
            if state is None or state in _ENDED:
                self._first_end_at = self._first_end_at or time.monotonic()
                name = state.decode() if state else "gone"
                self._result.ended[name] = self._result.ended.get(name, 0) + 1
                self._waiting.discard(job_id)
