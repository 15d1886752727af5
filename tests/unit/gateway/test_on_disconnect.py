"""What a request says about a job without a client, and its idempotency key."""

from __future__ import annotations

import pytest

from gateway.core.admission import CheckedRequest
from gateway.core.call_options import CallHeaders, call_headers
from gateway.core.job_factory import JobFactory
from gateway.core.on_disconnect import keep_s
from gateway.core.prompt_limits import PromptSize
from shared.api.endpoints import ENDPOINTS
from shared.fleet.registry import ModelInfo
from shared.job.errors import BadRequest
from shared.job.job import IDEMPOTENCY_TTL_S, IdempotencyKey, NewJob, shard_of
from tests.harness.settings import Settings

ENDPOINT = ENDPOINTS["/v1/chat/completions"]
MODEL = ModelInfo("m", "pool", {})
SETTINGS = Settings(disconnect_grace_s=7, stream_ttl_s=100, result_ttl_s=200, shards=5)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("cancel", 0.0),
        ("keep", None),
        ("keep_for=0", 0.0),
        ("keep_for=30", 30.0),
        ("keep_for=1.5", 1.5),
        ("keep_for=86400", 86_400.0),
    ],
)
def test_choices(text: str, seconds: float | None) -> None:
    assert keep_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "KEEP", "keep ", "keep_for", "keep_for=", "keep_for=-1", "keep_for=86401",
             "keep_for=1e3", "keep_for=nan", "keep_for=\u0663", "cancel\n"]
)  # fmt: skip
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(BadRequest) as error:
        keep_s(text)
    assert error.value.param == "x-flotilla-on-disconnect"


@pytest.mark.parametrize("seconds", [0.001, 5, 2.5, 2_592_000])
def test_a_header_may_name_the_longest_wait(seconds: float) -> None:
    headers = [(b"x-flotilla-max-wait", str(seconds).encode())]
    assert call_headers(headers).max_wait_s == seconds


@pytest.mark.parametrize("seconds", ["0", "-1", "x", "nan", "inf", "2592001", "1e400"])
def test_another_longest_wait_is_refused(seconds: str) -> None:
    with pytest.raises(BadRequest) as error:
        call_headers([(b"x-flotilla-max-wait", seconds.encode())])
    assert error.value.param == "x-flotilla-max-wait"


def attached(on_disconnect: str = "", *, key: str = "") -> NewJob:
    factory = JobFactory(SETTINGS, SETTINGS.described, "gw", lambda shard: True)
    request = CheckedRequest("m", True, "default", PromptSize(0, 0))
    idempotency = IdempotencyKey.of("t", "/p", key, b"{}") if key else None
    return factory.new(ENDPOINT, "t", MODEL, request, b"{}", on_disconnect, idempotency)


def test_a_job_with_a_key_is_kept_as_long_as_its_key_and_lies_in_its_shard() -> None:
    job = attached(key="k")
    assert job.ttl_s == IDEMPOTENCY_TTL_S
    assert job.idempotency is not None
    assert shard_of(job.id) == job.idempotency.shard(5)
    assert attached(key="k").id != job.id


def test_a_job_has_the_deadlines_of_its_pool() -> None:
    pools = {"slow": {"model": "m", "deadline_s": 9, "run_deadline_s": 5}, "other": {"model": "o"}}
    described = Settings(pools=pools).described  # type: ignore[arg-type]
    factory = JobFactory(SETTINGS, described, "gw", lambda shard: True)
    request = CheckedRequest("m", True, "default", PromptSize(0, 0))
    deadlines = []
    for pool in ("slow", "other", "unknown"):
        job = factory.new(ENDPOINT, "t", ModelInfo("m", pool, {}), request, b"{}")
        deadlines.append((job.deadline_s, job.queue_deadline_s, job.run_deadline_s))
    assert deadlines == [(9, None, 5), (None, None, None), (None, None, None)]


def test_headers() -> None:
    others = [(b"host", b"x"), (b"accept", b"*/*"), (b"accept", b"a")]
    assert call_headers(others) == CallHeaders("", "")
    found = call_headers([*others, (b"idempotency-key", b"k-1")])
    assert found == CallHeaders("k-1", "")
    assert call_headers([(b"x-flotilla-model-version", b"2")]).model_version == "2"
    found = call_headers(
        [(b"x-flotilla-on-disconnect", b"keep"), (b"idempotency-key", b"!~" * 127)]
    )
    assert found == CallHeaders("!~" * 127, "keep")


@pytest.mark.parametrize("key", [b"", b" ", b"a b", b"\x7f", b"\xc3\xbc", b"x" * 256, b"a\n"])
def test_an_invalid_key_is_refused(key: bytes) -> None:
    with pytest.raises(BadRequest, match="Idempotency-Key"):
        call_headers([(b"idempotency-key", key)])


def test_a_header_that_is_there_twice_is_refused() -> None:
    with pytest.raises(BadRequest, match="twice"):
        call_headers([(b"idempotency-key", b"a"), (b"idempotency-key", b"a")])
