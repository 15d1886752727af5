"""One way from bytes to a job: what goes before what, for each kind of request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.apis.jobs.routes import _call_in
from gateway.core.call import new_call
from gateway.core.incoming import Incoming
from gateway.core.job_factory import JobFactory
from gateway.core.new_call import NewCall, Unwrap
from gateway.http.known_keys import KnownKeys
from shared.api.endpoint import Endpoint
from shared.api.endpoints import ENDPOINTS
from shared.fleet.registry import ModelInfo
from shared.job.errors import BadRequest, BodyTooLarge, ModelNotFound
from shared.job.job import NewJob
from shared.tenants.api_key import ApiKey
from tests.harness.settings import Settings

CHAT = ENDPOINTS["/v1/chat/completions"]
SETTINGS = Settings(
    max_body_bytes=2000,
    pools={"p": {"model": "m", "deadline_s": 90, "queue_deadline_s": 80, "run_deadline_s": 70}},  # type: ignore[arg-type]
)
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


class Admission:
    """Refuses nothing."""

    async def admit(self, job: NewJob) -> NewJob:
        return job


class Fleet:
    """Has the model `m`."""

    models: Mapping[str, ModelInfo] = {}
    switches: Mapping[str, Any] = {}

    async def model(self, name: str, version: str) -> ModelInfo:
        if name != "m":
            raise ModelNotFound(name)
        return ModelInfo("m", "p", {})


async def job_of(
    source: Endpoint | Unwrap,
    body: bytes | dict[str, Any],
    *headers: tuple[bytes, bytes],
    attached: bool = True,
) -> NewCall:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    gateway: Any = SimpleNamespace(
        settings=SETTINGS,
        fleet=Fleet(),
        admission=Admission(),
        steps={},
        keys=KnownKeys({}),
        factory=JobFactory(SETTINGS, SETTINGS.described, "gw", lambda shard: True),
    )

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": raw, "more_body": False}

    sent = [(b"content-type", b"application/json"), *headers]
    scope = {"path": "/x", "headers": sent}
    incoming = Incoming(scope, receive, ApiKey("", "tenant"), 0.0, b"id-1")
    return await new_call(gateway, incoming, source, attached=attached)


HEADERS = (
    (b"x-flotilla-on-disconnect", b"keep_for=1"),
    (b"x-flotilla-queue-deadline", b"11"),
    (b"x-flotilla-run-deadline", b"12"),
)


async def test_a_header_goes_before_the_body_and_that_before_the_pool() -> None:
    asked = {
        "body": BODY,
        "on_disconnect": "keep_for=2",
        "deadline_s": 21,
        "queue_deadline_s": 22,
        "run_deadline_s": 23,
        "lane": "flex",
        "metadata": {"a": "b"},
    }
    for source, body, headers, expected in (
        (CHAT, BODY, (), (SETTINGS.disconnect_grace_s, 90, 80, 70, "default")),
        (CHAT, BODY, HEADERS, (1, 90, 11, 12, "default")),
        (_call_in, {"body": BODY}, (), (None, 90, 80, 70, "default")),
        (_call_in, asked, (), (2, 21, 22, 23, "flex")),
        (_call_in, asked, HEADERS, (1, 21, 11, 12, "flex")),
    ):
        call = await job_of(source, body, *headers, attached=source is CHAT)
        job = call.job
        found = (job.keep_s, job.deadline_s, job.queue_deadline_s, job.run_deadline_s, job.lane)
        assert found == expected
        assert job.gateway == ("gw" if source is CHAT else "")
        assert job.origin.request_id == "id-1"
        assert json.loads(job.body) == (body if source is CHAT else body["body"])


LARGE = json.dumps(BODY | {"model": "none", "x": "y" * 3000}).encode()
WRONG_KEY = (b"idempotency-key", b"\x7f")


@pytest.mark.parametrize(
    ("body", "headers", "error", "words"),
    [
        (LARGE, [WRONG_KEY], BodyTooLarge, "larger than"),
        (b"{", [WRONG_KEY], BadRequest, "not valid JSON"),
        (BODY | {"model": "none", "stream": 2}, [WRONG_KEY], BadRequest, "stream"),
        (BODY | {"model": "none"}, [WRONG_KEY], BadRequest, "Idempotency-Key"),
        (BODY | {"model": "none"}, [], ModelNotFound, "none"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
async def test_the_first_step_that_fails_is_answered(
    body: Any,
    headers: list[tuple[bytes, bytes]],
    error: type[Exception],
    words: str,
    wrapped: bool,
) -> None:
    if wrapped and not isinstance(body, bytes):
        body = {"body": body}
    with pytest.raises(error, match=words):
        await job_of(_call_in if wrapped else CHAT, body, *headers)


async def test_with_several_shards_a_conversation_stays_in_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = SETTINGS.model_copy(update={"max_body_bytes": 1 << 20, "shards": 64})
    monkeypatch.setitem(globals(), "SETTINGS", settings)
    messages = [{"role": "user", "content": "x" * 5000}]
    later = [*messages, {"role": "user", "content": "y"}]
    calls = [await job_of(CHAT, BODY | {"messages": each}) for each in (messages, later)]
    assert len({call.job.shard for call in calls}) == 1
    polled = [await job_of(CHAT, BODY | {"messages": messages}, attached=False) for _ in range(9)]
    assert len({call.job.shard for call in polled}) > 1, "nothing bounds how many of them wait"
