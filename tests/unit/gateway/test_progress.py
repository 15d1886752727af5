"""What a client that waits is told of its job: headers, and whether the job is gone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.core.progress import read_progress, waiting_headers
from shared.fleet.wait_estimate import WaitEstimate
from shared.job.errors import StreamReset
from shared.job.job import Job

POSITION = {"x-flotilla-queue-position": "3"}
START = "x-flotilla-estimated-start"


@pytest.mark.parametrize(
    ("wait", "headers"),
    [
        (None, {}),
        (WaitEstimate(None, "no worker runs"), {}),
        (WaitEstimate(1.0, ""), {START: "1.0"}),
        (WaitEstimate(12.34, ""), {START: "12.3"}),
    ],
)
def test_headers_tell_the_position_and_what_is_known_of_the_wait(
    wait: WaitEstimate | None, headers: dict[str, str]
) -> None:
    assert waiting_headers(3, wait) == POSITION | headers


async def test_a_job_is_not_gone_before_its_submit_is_acknowledged() -> None:
    async def get(job_id: str) -> list[Job | None]:
        return [None]

    context: Any = SimpleNamespace(queue=SimpleNamespace(get=get))
    queued: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    assert (await read_progress(context, "job_1", queued)).position is None
    queued.set_result(None)
    with pytest.raises(StreamReset):
        await read_progress(context, "job_1", queued)
