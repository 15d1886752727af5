"""The filter language of lists of jobs."""

from __future__ import annotations

import fnmatch
import random
import re
from typing import Any

import pytest

from gateway.core.job_filter import parse_filter, tenants_of
from shared.job.errors import BadRequest
from shared.job.states import JobState
from tests.unit.gateway.jobs import JOB_ID, NOW, attempt, job

FAILED: dict[str, Any] = {
    "state": JobState.FAILED,
    "error_code": "worker_lost",
    "finished_at": NOW - 5,
    "attempts": (attempt("w-1", -9, -8, "worker_lost", 3), attempt("w-2", -7, -5, "failed")),
    "metadata": {"customer": "42"},
}


@pytest.mark.parametrize(
    ("text", "changes", "matches"),
    [
        ("", {}, True),
        ("state:queued", {}, True),
        ("state:failed", {}, False),
        ("state:failed,queued", {}, True),
        ("-state:queued", {}, False),
        ("model:qwen", {}, True),
        ("model:QWEN3", {}, True),
        ("model:llama", {}, False),
        ("pool:qw", {}, False),
        ("pool:qw*", {}, True),
        ("lane:default", {}, True),
        ("-lane:flex", {}, True),
        ("endpoint:chat", {}, True),
        ("error:worker_lost", FAILED, True),
        ("error:worker_lost", {}, False),
        ("worker:w-1", FAILED, True),
        ("worker:w", FAILED, False),
        ("worker:w-*", FAILED, True),
        ("attempts:2", FAILED, True),
        ("attempts:2", {}, False),
        ("metadata.customer:42", FAILED, True),
        ("metadata.customer:4", FAILED, False),
        ("metadata.customer:*", {}, False),
        (f"id:{JOB_ID}", {}, True),
        ("id:job_000*", {}, True),
        ("qwen3", {}, True),
        ("-qwen3", {}, False),
        ("worker_lost", FAILED, True),
        ("since:1m", {}, True),
        ("since:5s", {}, False),
        ("until:5s", {}, True),
        ("until:1m", {}, False),
        ("since:1m until:5s state:queued model:qwen", {}, True),
        ("ended:10s", FAILED, True),
        ("ended:1s", FAILED, False),
        ("ended:1h", {}, False),
        ("since:1970-01-12T13:46:00", {}, True),
        ("since:1970-01-12T13:46:35Z", {}, False),
        ("model:[qwen]", {}, False),
    ],
)
def test_a_job_matches_all_words(text: str, changes: dict[str, Any], matches: bool) -> None:
    assert parse_filter(text, NOW).matches(job(**changes)) is matches


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sate:failed", "did you mean `state`"),
        ("model:qwen state:broken", "'state:broken'"),
        ("since:yesterday", "1h"),
        ("-since:1h", "negated"),
        ("attempts:many", "whole number"),
        ("lane:", "missing"),
        ("colour:red", "known words"),
        ("lane:fast", "flex"),
        ("x" * 2000, "characters"),
        ("id:" + "*a" * 17, "at most 16 `*`"),
        ("id:" + "*a" * 9 + " worker:" + "*a" * 9, "at most 16 `*`"),
    ],
)
def test_an_error_names_the_word(text: str, named: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_filter(text, NOW)
    assert named in str(refused.value)
    assert refused.value.param == "filter"


def test_the_old_parameters_are_exact() -> None:
    both = parse_filter("", NOW).also(JobState.QUEUED, "qwen3-8b", None)
    assert both.matches(job())
    assert not both.matches(job(model="qwen3-8b-awq"))
    assert not both.matches(job(**FAILED))


@pytest.mark.parametrize(
    ("text", "tenants"),
    [
        ("state:failed", ["own"]),
        ("tenant:team", ["team"]),
        ("tenant:*", ["own", "team", "team-b"]),
        ("tenant:team*,gone", ["team", "team-b", "gone"]),
    ],
)
def test_the_tenants_that_a_filter_asks_for(text: str, tenants: list[str]) -> None:
    assert tenants_of(parse_filter(text, NOW), "own", ["team", "team-b"]) == tenants


def test_globs_match_as_those_of_a_shell_do_and_nothing_is_kept_of_them() -> None:
    kept = [len(cache) for cache in _caches()]
    chance = random.Random(9)
    for _ in range(3000):
        pattern = "".join(chance.choices("ab*", k=chance.randrange(1, 8)))
        worker = "".join(chance.choices("ab", k=chance.randrange(1, 8)))
        tried = job(attempts=(attempt(worker, -9, -8, "worker_lost"),))
        expected = re.fullmatch(pattern.replace("*", ".*"), worker) is not None
        re.purge()
        assert parse_filter(f"worker:{pattern}", NOW).matches(tried) is expected, (pattern, worker)
    assert [len(cache) for cache in _caches()] <= kept


def _caches() -> list[Any]:
    """Where Python keeps patterns that it has compiled."""
    return [range(fnmatch._compile_pattern.cache_info().currsize), re._cache]  # type: ignore[attr-defined]
