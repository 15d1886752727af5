"""A job: its id, and what its hash in Redis tells."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.job import Attempt, NewJob, new_job_id, parse_job, shard_of
from shared.states import JobState

ID = "job_00a" + "0123456789abcdef01234567"


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 4096))
def test_a_new_id_names_a_shard(shards: int) -> None:
    job_id = new_job_id(shards)
    shard = shard_of(job_id)
    assert shard is not None
    assert 0 <= shard < shards
    assert len(job_id) == 31


def test_ids_are_not_made_twice() -> None:
    assert len({new_job_id(1) for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    ("text", "shard"),
    [
        (ID, 10),
        ("job_fff" + "0" * 24, 4095),
        ("", None),
        ("job_", None),
        (ID[:-1], None),
        (ID + "0", None),
        (ID.upper(), None),
        (" " + ID, None),
        (ID + " ", None),
        (ID[:-1] + "g", None),
        ("job_00٣" + "0" * 24, None),
        ("job_{0}" + "0" * 24, None),
        ("job_00a" + "0" * 23 + "*", None),
        ("job_00a" + "0" * 23 + "\x00", None),
        ("../../etc/passwd", None),
        ("job_-01" + "0" * 24, None),
        ("job_0x1" + "0" * 24, None),
        ("job_00a" + "0" * 100_000, None),
    ],
)
def test_only_an_id_names_a_shard(text: str, shard: int | None) -> None:
    assert shard_of(text) == shard


@settings(deadline=None, derandomize=True)
@given(st.text())
def test_no_other_text_is_an_id(text: str) -> None:
    assert shard_of(text) is None


def raw(**changes: Any) -> dict[bytes, bytes]:
    """The hash of a job that waits."""
    fields = {
        "state": "queued",
        "tenant": "t",
        "pool": "p",
        "lane": "flex",
        "model": "m",
        "endpoint": "/e",
        "stream": 1,
        "body": "{}",
        "metadata": "",
        "ttl_ms": 1500,
        "created_us": 1_000_000,
        "attempts": 0,
        "watchers": "",
    } | changes
    return {k.encode(): v if isinstance(v, bytes) else str(v).encode() for k, v in fields.items()}


def lost(worker: str, started_us: int, ended_us: int, reason: str) -> dict[str, str]:
    times = {"started_us": str(started_us), "ended_us": str(ended_us)}
    return {"worker": worker, "reason": reason, **times}


HISTORY = json.dumps([lost("a", 2_000_000, 3_000_000, "worker_lost")])
RUNS: dict[str, Any] = {"state": "in_progress", "worker": "b", "started_us": 4_000_000}


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
            stream=0,
            status=200,
            content_type="application/json",
            result=b"\xff",
            prompt_tokens=3,
            completion_tokens=4,
            metadata='{"a": "b"}',
        ),
    )
    assert (job.started_at, job.finished_at, job.deadline_at) == (4.0, 5.5, 9.0)
    assert job.expires_at == 7.0
    assert job.usage == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert (job.status, job.result, job.stream, job.metadata) == (200, b"\xff", False, {"a": "b"})
    assert job.attempts == (Attempt("b", 4.0, 5.5, "completed"),)


def test_a_job_without_tokens_has_used_none() -> None:
    job = parse_job(ID, raw(prompt_tokens=0, completion_tokens=0))
    assert job.usage == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


FIRST = Attempt("a", 2.0, 3.0, "worker_lost")


@pytest.mark.parametrize(
    ("changes", "attempts"),
    [
        pytest.param({}, (), id="never started"),
        pytest.param(RUNS, (Attempt("b", 4.0, None, "in_progress"),), id="first"),
        pytest.param(
            {"history": HISTORY, "worker": "", "started_us": 2_000_000}, (FIRST,), id="taken back"
        ),
        pytest.param(
            RUNS | {"history": HISTORY},
            (FIRST, Attempt("b", 4.0, None, "in_progress")),
            id="second",
        ),
        pytest.param(
            {
                "state": "failed",
                "error_code": "worker_lost",
                "worker": "a",
                "started_us": 2_000_000,
                "finished_us": 3_000_000,
                "history": HISTORY,
            },
            (FIRST,),
            id="the last one is not told twice",
        ),
        pytest.param(
            {"state": "cancelled", "error_code": "cancelled", "worker": "", "history": HISTORY},
            (FIRST,),
            id="cancelled while it waited again",
        ),
    ],
)
def test_attempts_are_told_once_each(
    changes: dict[str, Any], attempts: tuple[Attempt, ...]
) -> None:
    assert parse_job(ID, raw(**changes)).attempts == attempts


def test_what_is_submitted_is_what_is_parsed() -> None:
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
    names = ["model", "endpoint", "body", "stream", "watchers", "metadata", "ttl_ms"]
    job = parse_job(ID, raw(**dict(zip(names, new.submission()[5:12], strict=True))))
    assert (job.model, job.stream, job.ttl_s) == (new.model, new.stream, new.ttl_s)
    assert job.metadata == new.metadata
