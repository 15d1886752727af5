"""Which errors a client repeats, and when: `x-should-retry` and `retry-after`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.harness.client import CHAT, MODEL, chat
from tests.harness.fleet import Stack
from tests.harness.keys import KEYS, OPERATOR, TEAM
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for

TOO_LONG = chat(max_tokens=10**9)
LONG = chat(max_tokens=4000, ignore_eos=True)
PAUSE = f"/admin/pools/{MODEL}/pause"


class Fleet:
    """A gateway with little room, and a worker with one slot, on a Redis of their own."""

    def __init__(self, folder: Path) -> None:
        self.redis = RedisServer(folder)
        self.redis.start()
        self.stack = Stack(self.redis.url, folder)
        settings: dict[str, Any] = {**KEYS, "max_queue_depth": 100, "max_body_bytes": 10_000}
        self.gateway = self.stack.gateway(**settings)
        self.api = httpx.Client(base_url=self.gateway.url, headers=TEAM, timeout=60)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    found = Fleet(tmp_path_factory.mktemp("fleet"))
    with found.api:
        without = found.api.post(CHAT, json=chat())
        check(without, 503, "model_unavailable", repeated=True)
        found.stack.worker(sim_step_ms=20, sim_step_us_per_seq=0, sim_max_num_seqs=1)
        yield found
    found.stack.close()
    found.redis.stop()


@pytest.fixture
def api(fleet: Fleet) -> httpx.Client:
    return fleet.api


def check(answer: httpx.Response, status: int, code: Any, *, repeated: bool = False) -> None:
    assert (answer.status_code, answer.json()["error"].get("code")) == (status, code), answer.text
    assert ("x-should-retry" in answer.headers) != repeated
    if not repeated:
        assert answer.headers["x-should-retry"] == "false"
    if status in (429, 503):
        assert int(answer.headers["retry-after"]) >= 1


def test_a_paused_pool_promises_nothing(api: httpx.Client) -> None:
    for _ in range(3):  # the first jobs of this worker, so its pace is two seconds for each
        answer = api.post(CHAT, json=chat(max_tokens=100, ignore_eos=True))
        assert answer.status_code == 200
    assert api.post(PAUSE, json={"reason": "test"}, headers=OPERATOR).status_code < 300
    try:
        jobs = [api.post("/jobs", json={"body": LONG}).json() for _ in range(2)]

        def waits() -> Any:
            shown = api.get(f"/jobs/{jobs[-1]['id']}").json()
            return shown if "paused" in (shown.get("wait_reason") or "") else None

        shown = wait_for(waits, "the gateway knows that the pool is paused")
        assert shown["state"] == "queued"
        assert shown.get("estimated_wait_s") is None
        answer = api.get(f"/jobs/{jobs[-1]['id']}")
        assert "x-flotilla-estimated-start" not in answer.headers
        jobs += [api.post("/jobs", json={"body": LONG}).json() for _ in range(98)]
        full = api.post(CHAT, json=chat())
        check(full, 503, "queue_full", repeated=True)
        assert "in about" not in full.json()["error"]["message"]
    finally:
        api.post(PAUSE.replace("pause", "resume"), json={"reason": "x"}, headers=OPERATOR)
    # They run now, so the estimate is some minutes: longer than an SDK waits before it repeats.
    hurried = {"x-flotilla-max-wait": "0.1"}

    def refused() -> Any:
        answer = api.post(CHAT, json=LONG, headers=hurried)
        return answer if int(answer.headers.get("retry-after", "0")) > 120 else None

    try:
        answer = wait_for(refused, "the wait is known")
        check(answer, 503, answer.json()["error"]["code"])
    finally:
        for job in jobs:
            api.post(f"/jobs/{job['id']}/cancel")


@pytest.mark.parametrize(
    ("method", "path", "more", "status", "code"),
    [
        ("POST", CHAT, {"json": chat(stream=3)}, 400, None),
        ("POST", CHAT, {"json": TOO_LONG}, 400, 400),
        ("POST", CHAT, {"json": TOO_LONG | {"stream": True}}, 400, 400),
        ("POST", "/v1/messages", {"json": TOO_LONG}, 400, None),
        ("POST", CHAT, {"json": chat(), "headers": {"authorization": ""}}, 401, "invalid_api_key"),
        ("GET", "/admin/keys", {}, 403, "missing_scope"),
        ("GET", "/jobs/nothing", {}, 404, "not_found"),
        ("GET", "/nowhere", {}, 404, "unknown_route"),
        ("POST", CHAT, {"json": chat(model="none")}, 404, "model_not_found"),
        ("GET", CHAT, {}, 405, "method_not_allowed"),
        ("POST", CHAT, {"json": chat("x" * 20_000)}, 413, "body_too_large"),
        ("POST", CHAT, {"content": "x"}, 415, "unsupported_media_type"),
        ("POST", "/v1/files", {"files": {"file": b"x"}}, 501, "storage_not_configured"),
        ("POST", "/v1/images/generations", {"json": {}}, 404, "unknown_route"),
        (
            "POST",
            CHAT,
            {"json": LONG, "headers": {"x-flotilla-run-deadline": "0.3"}},
            504,
            "run_deadline_exceeded",
        ),
    ],
)
def test_what_a_repetition_cant_change_is_final(
    api: httpx.Client, method: str, path: str, more: dict[str, Any], status: int, code: Any
) -> None:
    check(api.request(method, path, **more), status, code)


def test_the_stored_error_of_a_job_is_final(api: httpx.Client) -> None:
    job = api.post("/jobs", json={"body": TOO_LONG}).json()
    wait_for(lambda: api.get(f"/jobs/{job['id']}").json()["state"] == "failed", "it has failed")
    check(api.get(f"/jobs/{job['id']}/result"), 400, 400)
    headers = {"idempotency-key": "final-1"}
    for _ in range(2):
        check(api.post(CHAT, json=TOO_LONG, headers=headers), 400, 400)
    check(api.post(CHAT, json=chat(), headers=headers), 422, "idempotency_key_reused")
    job = api.post("/jobs", json={"body": LONG}).json()
    api.post(f"/jobs/{job['id']}/cancel")
    check(api.get(f"/jobs/{job['id']}/result"), 409, "cancelled")


def test_the_sdk_sends_a_request_once_whose_deadline_passes(fleet: Fleet) -> None:
    sent: list[httpx.Request] = []
    url, key = f"{fleet.gateway.url}/v1", TEAM["authorization"].removeprefix("Bearer ")
    with (
        httpx.Client(event_hooks={"request": [sent.append]}) as http,
        openai.OpenAI(base_url=url, api_key=key, http_client=http) as sdk,  # type: ignore[arg-type]
        pytest.raises(openai.InternalServerError),
    ):
        sdk.chat.completions.create(
            **chat(max_tokens=4000),
            extra_body={"ignore_eos": True},
            extra_headers={"x-flotilla-run-deadline": "0.3"},
        )
    assert len(sent) == 1


def test_without_redis_a_repetition_may_help(fleet: Fleet) -> None:
    fleet.redis.stop()
    try:
        check(fleet.api.post(CHAT, json=chat()), 503, "redis_unavailable", repeated=True)
    finally:
        fleet.redis.start()
