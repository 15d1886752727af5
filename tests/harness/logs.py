"""What the logs of jobs have, as Redis holds them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from load_tests.faults.kills.ledger_check import Logged
from load_tests.oracle.stored_job import read_jobs
from shared.store import keys
from shared.store.servers import Servers

Owner = tuple[str, str, str]


def tokens_in_logs(redis_url: str, tenants: Sequence[str]) -> dict[Owner, list[int]]:
    """Of each tenant, key and model: jobs, prompt tokens and output tokens. All have ended."""
    return asyncio.run(_tokens_in_logs(redis_url, tenants))


async def _tokens_in_logs(redis_url: str, tenants: Sequence[str]) -> dict[Owner, list[int]]:
    found: dict[Owner, list[int]] = defaultdict(lambda: [0, 0, 0])
    async with Servers(redis_url, 1) as servers:
        for tenant in tenants:
            listed = await servers.of(0).zrange(keys.of("jobs", 0, tenant), 0, -1)
            for stored in (await read_jobs(servers, [each.decode() for each in listed])).values():
                assert stored is not None
                assert stored.job.state.terminal
                logged = Logged.of(stored)
                row = found[logged.owner]
                for number, added in enumerate((1, *logged[1:])):
                    row[number] += added
    return dict(found)
