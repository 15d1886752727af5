"""How long the measured requests waited in the fleet's queue, which no other server shows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import aiohttp

from gateway.bench.call import Target
from gateway.bench.load import session
from gateway.bench.outcome import Outcome

MOST = 200
_AT_ONCE = 8
_TIMEOUT_S = 10.0
_OK = 200


async def add_queue_waits(target: Target, outcomes: Sequence[Outcome]) -> None:
    """Set `queue_wait` of at most `MOST` answered requests, evenly chosen, from their jobs.

    Called after the load, so that it disturbs no measurement. A server without jobs changes
    nothing.
    """
    jobs = [outcome for outcome in outcomes if outcome.job_id and not outcome.error]
    chosen = jobs[:: -(-len(jobs) // MOST) or 1]
    free = asyncio.Semaphore(_AT_ONCE)
    async with session(_TIMEOUT_S) as connections, asyncio.TaskGroup() as tasks:
        for outcome in chosen:
            tasks.create_task(_add(connections, target, outcome, free))


async def _add(
    connections: aiohttp.ClientSession, target: Target, outcome: Outcome, free: asyncio.Semaphore
) -> None:
    url = f"{target.url}/jobs/{outcome.job_id}"
    try:
        async with free, connections.get(url, headers=target.headers) as response:
            job = await response.json() if response.status == _OK else {}
        created, started = job.get("created_at"), job.get("started_at")
    except (aiohttp.ClientError, TimeoutError, ValueError, AttributeError):
        return
    if created is not None and started is not None:
        outcome.queue_wait = max(0.0, started - created)
