"""Five hundred clients reset their connections at once, in the middle of their answers."""

from __future__ import annotations

import asyncio
import resource
from itertools import pairwise
from typing import Any

import pytest

from tests.harness.client import CHAT, chat, http
from tests.harness.fleet import Process, Stack
from tests.harness.inner_settings import PATIENT, patience
from tests.harness.process_state import anonymous_bytes, descriptors
from tests.harness.strict_client import StrictClient, request
from tests.harness.waiting import wait_for

CLIENTS, BATCH = 500, 100


async def wave(gateway: Process) -> None:
    """Streams whose clients all reset their connections at the same time."""
    body = chat(stream=True, max_tokens=8000, ignore_eos=True)

    async def begin() -> None:
        client = await StrictClient.connect(gateway.url)
        client.send(request("POST", CHAT, "any", body))
        status, headers = await client.head()
        assert status == 200, await client.read_for(1)
        await client.chunk(headers[b"x-flotilla-job-id"])

    try:
        for _ in range(0, CLIENTS, BATCH):
            async with asyncio.TaskGroup() as batch:  # it leaves none behind that still connects
                for _ in range(BATCH):
                    batch.create_task(begin())
    finally:
        StrictClient.reset_all()


def nothing_is_left(gateway: Process) -> None:
    """All connections but our own are closed, and no job runs."""

    def running() -> list[Any]:
        answer = http.get(f"{gateway.url}/jobs?state=in_progress&limit=100", timeout=60)
        assert answer.status_code in {200, 503}, answer.text
        return answer.json().get("data", ["the queue is too busy to answer"])

    wait_for(lambda: gateway.metric("flotilla_connections") <= 2, "connections are closed", 120)
    wait_for(lambda: not running(), f"jobs are cancelled, as {running()[:3]}", 120)


async def test_500_connections_reset_at_once_leave_nothing(stack: Stack) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < CLIENTS + 200:
        pytest.skip(f"only {hard} file descriptors are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, CLIENTS + 200), hard))
    # Busy workers, and clients that are slow to send, are not what is tested here.
    gateway = stack.gateway(disconnect_grace_s=0.5, **PATIENT, **patience(header_s=150))
    for _ in range(4):  # Redis does more for each job of a worker that has more of them
        stack.worker(
            sim_step_ms=1000,
            sim_step_us_per_seq=0,
            sim_max_num_seqs=750,
            sim_kv_tokens=1 << 23,
            **PATIENT,
        )
    memory, files = [anonymous_bytes(gateway)], []
    for _ in range(3):
        await wave(gateway)
        await asyncio.to_thread(nothing_is_left, gateway)
        memory.append(anonymous_bytes(gateway))
        files.append(descriptors(gateway))
    assert max(files[1:]) <= files[0] + 10, "connections to Redis may be added"
    first, *others = (after - before for before, after in pairwise(memory))
    assert min(others) < first / 2, "each wave leaves something in memory"
    assert "Traceback" not in gateway.log.read_text()
