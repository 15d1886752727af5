"""A job record: the hash in Redis, parsed."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from shared.job.job import Attempt, NewJob
from shared.job.record import Lease, Request, ResponseInfo, parse_job
from shared.job.states import JobState
from shared.store.queue import pack_job

ID = "job_00a" + "0123456789abcdef01234567"
REQUEST = Request("t", "p", "flex", "m", "/e", "1", "1500", "3", *[""] * 8)


def raw(**changes: Any) -> dict[bytes, bytes]:
    """The hash of a queued job."""
    fields = {
        "state": "queued",
        "request": REQUEST,
        "body": "{}",
        "created_us": 1_000_000,
    } | changes
    packed = {k: msgpack.packb(v) if isinstance(v, tuple) else v for k, v in fields.items()}
    return {k.encode(): v if isinstance(v, bytes) else str(v).encode() for k, v in packed.items()}


def lease(worker: str = "b", started_us: int = 4_000_000) -> Lease:
    return Lease(worker, 10**15, 9, 0, 0, 1, 2, started_us)


HISTORY = msgpack.packb([("a", 2_000_000, 3_000_000, "worker_lost", 7)])
RUNS: dict[str, Any] = {"state": "in_progress", "lease": lease()}


def test_a_job_that_waits() -> None:
    job = parse_job(ID, raw())
    assert (job.id, job.state, job.tenant, job.pool, job.lane) == (
        ID,
        JobState.QUEUED,
        "t",
        "p",
        "flex",
    )
    assert (job.model, job.endpoint, job.stream, job.ttl_s) == ("m", "/e", True, 1.5)
    assert (job.created_at, job.created_us) == (1.0, 1_000_000)
    assert job.started_at is job.finished_at is job.deadline_at is job.expires_at is None
    assert (job.attempts, job.metadata, job.usage) == ((), {}, None)
    assert (job.status, job.result, job.error_code, job.content_type) == (0, b"", "", "")


def test_a_job_that_has_ended() -> None:
    job = parse_job(
        ID,
        raw(
            **RUNS | {"state": "completed"},
            finished_us=5_500_000,
            deadline_us=9_000_000,
            request=REQUEST._replace(stream="0", metadata='{"a": "b"}'),
            result=b"\xff",
            response=ResponseInfo(200, "application/json", 3, 4, 1, 0),
        ),
    )
    assert (job.started_at, job.finished_at, job.deadline_at) == (4.0, 5.5, 9.0)
    assert job.expires_at == 7.0
    assert job.usage == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert (job.status, job.result, job.stream, job.metadata) == (200, b"\xff", False, {"a": "b"})
    assert job.attempts == (Attempt("b", 4.0, 5.5, "completed"),)


def test_a_job_without_tokens_has_used_none() -> None:
    job = parse_job(ID, raw(response=ResponseInfo(200, "", 0, 0, 0, 0)))
    assert job.usage == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


FIRST = Attempt("a", 2.0, 3.0, "worker_lost", 7)


@pytest.mark.parametrize(
    ("changes", "attempts"),
    [
        pytest.param({}, (), id="never started"),
        pytest.param(RUNS, (Attempt("b", 4.0, None, "in_progress"),), id="first"),
        pytest.param({"history": HISTORY, "lease": lease("", 0)}, (FIRST,), id="taken back"),
        pytest.param(
            RUNS | {"history": HISTORY},
            (FIRST, Attempt("b", 4.0, None, "in_progress")),
            id="second",
        ),
        pytest.param(
            {
                "state": "failed",
                "error_code": "worker_lost",
                "lease": lease("", 2_000_000),
                "finished_us": 3_000_000,
                "history": HISTORY,
            },
            (FIRST,),
            id="lost too often",
        ),
        pytest.param(
            {
                "state": "failed",
                "error_code": "worker_lost",
                "lease": lease(),
                "finished_us": 5_000_000,
                "history": HISTORY,
            },
            (FIRST, Attempt("b", 4.0, 5.0, "failed")),
            id="the last worker could not continue it",
        ),
        pytest.param(
            {
                "state": "cancelled",
                "error_code": "cancelled",
                "lease": lease("", 0),
                "history": HISTORY,
            },
            (FIRST,),
            id="cancelled while it waited again",
        ),
    ],
)
def test_each_attempt_is_listed_once(
    changes: dict[str, Any], attempts: tuple[Attempt, ...]
) -> None:
    assert parse_job(ID, raw(**changes)).attempts == attempts


def test_a_submitted_record_is_parsed_unchanged() -> None:
    new = NewJob(
        id=ID,
        tenant="t",
        pool="p",
        lane="flex",
        model="模型",
        endpoint="/e",
        body=b"\x00",
        stream=False,
        ttl_s=2.5,
        metadata={"schlüssel": "😀"},
    )
    job_id, request, body, deadline_us, gateway = pack_job(new)
    job = parse_job(ID, raw(request=request, body=body))
    assert (job_id, body, deadline_us, gateway) == (new.id, new.body, 0, "")
    assert (job.tenant, job.pool, job.lane, job.model) == ("t", "p", "flex", new.model)
    assert (job.endpoint, job.stream, job.ttl_s) == (new.endpoint, new.stream, new.ttl_s)
    assert job.metadata == new.metadata
