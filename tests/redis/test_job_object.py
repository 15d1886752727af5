"""The job object of a job with several attempts: its text and usage are those of the whole log."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from redis import Redis

from gateway.core import job_object
from gateway.core.fleet_view import FleetView
from shared.fleet.wait_estimate import WaitEstimate
from shared.job.job import LeasedJob
from shared.job.job_log import make_journal
from shared.store.redis import keys
from shared.store.queue import Queue
from tests.store.conftest import (
    WORKER,
    answer,
    claim_one,
    emit,
    emit_and_flush,
    emit_token,
    entry_output,
    lease,
    log_flush,
    output,
)

FLEET = cast(FleetView, SimpleNamespace(wait_estimate=lambda *_: WaitEstimate(None, "")))


async def shown(queue: Queue, job_id: str) -> dict[str, Any]:
    job = await queue.get(job_id)
    assert job is not None
    body, _ = await job_object.full(queue, FLEET, job)
    shown: dict[str, Any] = json.loads(b"".join([part async for part in body.parts()]))
    return shown


async def begin(queue: Queue, job: LeasedJob) -> None:
    """The first entry: it has the length of the prompt."""
    journal = make_journal([(0, 7), (0, 0, [1], "a")])
    await emit(queue, [entry_output(job, 1, None, journal)])


@pytest.mark.parametrize("stream", [True, False])
async def test_text_and_usage_are_those_of_all_attempts(queue: Queue, stream: bool) -> None:
    job = await lease(queue, stream=stream)
    await begin(queue, job)
    await emit_token(queue, job, 2, "b")
    await queue.release([job], "drained", blame=False)
    waiting = await shown(queue, job.id)
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    assert (waiting["state"], waiting["position"], waiting["usage"]) == ("queued", 1, None)
    assert (waiting["text"], waiting["usage_so_far"]) == ("ab", usage)
    assert [(a["outcome"], a["entries"]) for a in waiting["attempts"]] == [("drained", 2)]
    again = await claim_one(queue, worker="w-2")
    third = output(again, 3, "c")
    await emit(queue, [third], log_flushes=[log_flush(third, 3)])
    running = await shown(queue, job.id)
    assert running["text"] == "abc"
    assert running["usage_so_far"]["completion_tokens"] == 3
    end = answer(prompt_tokens=7, completion_tokens=4)
    assert await emit(queue, [output(again, 4, "d", end)]) == {}
    done = await shown(queue, job.id)
    assert (done["state"], done["text"], done["error"]) == ("completed", "abcd", None)
    assert done["choices"] == [{"index": 0, "text": "abcd", "tokens": 4}]
    assert done["usage"] == {"prompt_tokens": 7, "completion_tokens": 4, "total_tokens": 11}
    assert [(a["worker"], a["outcome"], a["entries"]) for a in done["attempts"]] == [
        (WORKER, "drained", 2),
        ("w-2", "completed", None),
    ]


async def test_a_waiting_job_whose_log_lacks_entries_shows_it(
    queue: Queue, store: Redis
) -> None:
    job = await lease(queue, stream=False)
    await emit_and_flush(queue, job)
    await emit_token(queue, job, 2)
    await queue.release([job], "drained", blame=False)
    store.lpop(keys.log(0, job.id))
    waiting = await shown(queue, job.id)
    assert (waiting["text"], waiting["error"]["code"]) == (None, "stream_reset")
