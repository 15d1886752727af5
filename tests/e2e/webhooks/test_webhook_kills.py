"""Kills of Celery and of the whole maintenance process: no event is lost, none has two ids."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import defaultdict
from pathlib import Path

import httpx
import pytest

from tests.e2e.webhooks.conftest import ALLOW, client_of, subscribed
from tests.harness.fleet import Process, Stack
from tests.harness.up import children
from tests.harness.waiting import eventually
from tests.unit.gateway.webhooks.receivers import Call, answers

JOBS = 60
BODY = {"model": "simulated", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}


async def slowly(call: Call, writer: asyncio.StreamWriter) -> None:
    """So that a kill finds events on their way."""
    await asyncio.sleep(0.2)
    await answers(200)(call, writer)


async def test_every_event_arrives_with_one_id(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    stack.worker(sim_step_ms=2, sim_step_us_per_seq=0)
    gateway, maintenance = stack.gateway(**ALLOW), stack.maintenance(**ALLOW)
    async with client_of(gateway) as client, subscribed(client, slowly) as there:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
            made = [await http.post("/jobs", json={"body": BODY}) for _ in range(JOBS)]
        for n, whole in ((3, False), (20, True), (40, False)):
            await there.events(n)
            maintenance = await killed(stack, maintenance, whole=whole)

        async def all_are_told() -> bool:
            return len({call.body for call in there.calls}) >= JOBS

        await eventually(all_are_told, "each job's event arrives", 120)
        ids = defaultdict(set)
        for call in there.calls:
            ids[there.told(call).data.id].add(call.headers["webhook-id"])
    assert ids.keys() == {answer.json()["id"] for answer in made}
    assert {len(each) for each in ids.values()} == {1}
    assert len(set.union(*ids.values())) == JOBS


async def killed(stack: Stack, maintenance: Process, *, whole: bool) -> Process:
    """What goes on behind the kill."""

    async def celery() -> list[int]:
        return children(maintenance.popen.pid)

    process, *_ = await eventually(celery, "Celery runs")
    if not whole:
        os.kill(process, signal.SIGKILL)
        return maintenance
    maintenance.kill()
    return stack.maintenance(**ALLOW)
