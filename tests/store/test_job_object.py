"""The job object of a job with several attempts: its text and usage are those of the whole log."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.core import job_object
from gateway.core.fleet_view import FleetView
from shared.fleet.wait_estimate import WaitEstimate
from shared.job.log import make_journal, pack_entry
from shared.store import keys
from shared.store.queue import HeldJob, Queue, Step
from tests.store.conftest import Case, Holder

FLEET = cast(FleetView, SimpleNamespace(wait_estimate=lambda *_: WaitEstimate(None, "")))


async def shown(queue: Queue, job_id: str) -> dict[str, Any]:
    [job] = await queue.get(job_id)
    assert job is not None
    body, _ = await job_object.full(queue, FLEET, job)
    shown: dict[str, Any] = json.loads(b"".join([part async for part in body.parts()]))
    return shown


async def begin(worker: Holder, job: HeldJob) -> None:
    """The first step: it has the length of the prompt."""
    entry = pack_entry(make_journal([(0, 7), (0, 0, [1], "a")]), None)
    await worker.send(Step(entries=[job.id, worker.next_id(job), entry]))


@pytest.mark.parametrize("stream", [True, False])
async def test_text_and_usage_are_those_of_all_attempts(case: Case, stream: bool) -> None:
    await case.submit(stream=stream)
    worker, other = case.worker(), case.worker("w-2")
    job = await worker.claim_one()
    await begin(worker, job)
    await worker.write(job, text="b")
    await case.queue.give_back([job], "handed_over", "drained")
    waiting = await shown(case.queue, job.id)
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    assert (waiting["state"], waiting["position"], waiting["usage"]) == ("queued", 1, None)
    assert (waiting["text"], waiting["usage_so_far"]) == ("ab", usage)
    assert [each["outcome"] for each in waiting["attempts"]] == ["drained"]
    again = await other.claim_one()
    await other.write(again, text="c")
    running = await shown(case.queue, job.id)
    assert running["text"] == "abc"
    assert running["usage_so_far"]["completion_tokens"] == 3
    await other.end(again, prompt_tokens=7, completion_tokens=3)
    done = await shown(case.queue, job.id)
    assert (done["state"], done["text"], done["error"]) == ("completed", "abc", None)
    assert done["choices"] == [{"index": 0, "text": "abc", "tokens": 3}]
    assert done["usage"] == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    found = [(each["worker"], each["outcome"]) for each in done["attempts"]]
    assert found == [("w-1", "drained"), ("w-2", "completed")]


async def test_a_waiting_job_whose_log_lacks_entries_shows_it(case: Case) -> None:
    await case.submit(stream=False)
    worker = case.worker()
    job = await worker.claim_one()
    await worker.write(job)
    await worker.write(job)
    await case.queue.give_back([job], "handed_over", "drained")
    log = keys.log(0, job.id)
    [(first, _)] = case.server.xrange(log, count=1)
    case.server.xdel(log, first)
    waiting = await shown(case.queue, job.id)
    assert (waiting["text"], waiting["error"]["code"]) == (None, "stream_reset")
