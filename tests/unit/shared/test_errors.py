"""Errors: OpenAI's shape over HTTP, and the classes."""

from __future__ import annotations

import json

import pytest

from shared.job import errors
from shared.job.errors import BadRequest, FlotillaError, JobFailed, Unauthorized, job_error


def classes(root: type[FlotillaError] = FlotillaError) -> list[type[FlotillaError]]:
    return [root, *(each for child in root.__subclasses__() for each in classes(child))]


EVERY = classes()
REPEATED_4XX = {
    errors.BodyTimeout,
    errors.ConversationLocked,
    errors.HeadersTimeout,
    errors.RateLimited,
    errors.TooManyWaiting,
    errors.WebhookUnreachable,
}
"""Others of a status below 500 stay as they are, whenever the request is repeated."""
FINAL_5XX = {
    errors.BlobMissing,
    errors.DeadlineExceeded,
    errors.KeysNotConfigured,
    errors.LogLost,
    errors.OperationFailed,
    errors.OperationIncomplete,
    errors.QueueDeadlineExceeded,
    errors.RunDeadlineExceeded,
    errors.StorageNotConfigured,
    errors.StreamReset,
    errors.TooManyAttempts,
}
JOB = "job_000" + "0" * 24


def test_an_error_has_openais_shape() -> None:
    for kind in EVERY:
        body = json.loads(kind('a "message"\nwith ümläuts').to_openai())
        assert list(body) == ["error"]
        error = body["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"] == 'a "message"\nwith ümläuts'
        assert error["type"] in {
            "insufficient_quota",
            "invalid_request_error",
            "job_cancelled",
            "requests",
            "server_error",
        }
        assert (error["type"] != "server_error") == (400 <= kind.status < 500)
        assert error["code"] == kind.code


def test_every_429_and_503_has_retry_after() -> None:
    for kind in EVERY:
        headers = dict(kind("x").headers())
        assert (b"retry-after" in headers) == (kind.status in {429, 503})
        assert all(
            0 < int(value) <= 120 for name, value in headers.items() if name == b"retry-after"
        )


def test_what_a_repetition_cant_change_says_so() -> None:
    for kind in EVERY:
        final = kind in FINAL_5XX if kind.status >= 500 else kind not in REPEATED_4XX
        assert ((b"x-should-retry", b"false") in kind("x").headers()) == final


@pytest.mark.parametrize(
    ("seconds", "headers"),
    [
        (None, []),
        (2, [(b"retry-after", b"2")]),
        (2.01, [(b"retry-after", b"3")]),
        (0.2501, [(b"retry-after", b"1"), (b"retry-after-ms", b"251")]),
        (0, [(b"retry-after", b"1"), (b"retry-after-ms", b"1")]),
        (3600, [(b"retry-after", b"3600"), (b"x-should-retry", b"false")]),
    ],
)
def test_an_error_may_know_when_to_try_again(
    seconds: float | None, headers: list[tuple[bytes, bytes]]
) -> None:
    assert errors.QueueFull("x").after(seconds).headers() == headers
    assert errors.NoWorker("x").headers() == [(b"retry-after", b"5")]


def test_codes_are_not_used_twice() -> None:
    codes = [kind.code for kind in EVERY if kind.code is not None]
    assert len(set(codes)) == len(codes)


def test_a_bad_request_names_the_field() -> None:
    assert json.loads(BadRequest("m", "stream").to_openai())["error"]["param"] == "stream"
    assert json.loads(BadRequest("m").to_openai())["error"]["param"] is None


def test_a_401_has_www_authenticate() -> None:
    assert (b"www-authenticate", b"Bearer") in Unauthorized("x").headers()


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("worker_lost", 500),
        ("too_many_attempts", 500),
        ("cancelled", 409),
        ("deadline_exceeded", 504),
    ],
)
def test_the_code_of_a_job_selects_its_error(code: str, status: int) -> None:
    error = job_error(code, JOB)
    assert (error.code, error.status) == (code, status)
    assert str(error)


@pytest.mark.parametrize("code", ["", "rejected", "engine_error", "unknown_code"])
def test_any_other_code_is_a_failed_job(code: str) -> None:
    assert type(job_error(code, JOB)) is JobFailed
    assert job_error(code, JOB).status == 500


def test_the_error_of_a_cancelled_job_says_where_its_text_is_and_is_final() -> None:
    error = job_error("cancelled", JOB)
    assert f"GET /jobs/{JOB}" in str(error)
    assert error.type == "job_cancelled"
    assert error.headers() == [(b"x-should-retry", b"false")]
