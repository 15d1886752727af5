"""TorchServe's calls, as its guides and its client for vLLM send them; only the host differs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway.ops.autoscaler.tick import tick
from shared.store.redis.fleet_registry import Registry
from shared.store.redis.scale_store import ScaleStore
from tests.harness.client import http
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer
from tests.harness.settings import Settings
from tests.harness.waiting import wait_for
from tests.redis.conftest import open_queue

MODEL = "org/model"
"""With a slash, as a hub's names have."""
POOL = "the-pool"
OPERATOR = {"authorization": "Bearer 0perator"}
TEAM = {"authorization": "Bearer s3cret"}


@pytest.fixture(scope="module")
def gateway(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Process]:
    """A gateway with keys, and one worker."""
    with redis_server.client() as client:
        client.flushall()
    stack = Stack(redis_server.url, tmp_path_factory.mktemp("fleet"))
    stack.worker(served_model_name=MODEL, pool=POOL, sim_step_ms=2, sim_step_us_per_seq=0)
    gateway = stack.gateway(api_keys="team:s3cret", admin_keys="ops:0perator")

    def ready() -> bool:
        return http.get(f"{gateway.url}/readyz").json()["status"] == "ready"

    wait_for(ready, "the model is known")
    yield gateway
    stack.close()


@pytest.fixture
def api(gateway: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=30, headers=TEAM) as client:
        yield client


@pytest.fixture
def operator(gateway: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=30, headers=OPERATOR) as client:
        yield client


# --- predictions ---


@pytest.mark.parametrize("model", ["", "another-name", None])
@pytest.mark.parametrize("version", ["", "/1.0"])
def test_a_completion_is_answered_by_the_model_of_the_path(
    api: httpx.Client, version: str, model: str | None
) -> None:
    body = {"model": model, "prompt": "Hello, my name is", "max_tokens": 6}
    answer = api.post(f"/predictions/{MODEL}{version}/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["object"], answer.json()["model"]) == ("text_completion", MODEL)
    direct = api.post("/v1/completions", json=body | {"model": MODEL}).json()
    assert answer.json()["choices"] == direct["choices"]
    assert answer.headers["x-flotilla-job-id"] in answer.json()["id"]


def test_a_chat_is_streamed(api: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 6, "stream": True}
    path = f"/predictions/{MODEL}/1.0/v1/chat/completions"
    with api.stream("POST", path, json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert {chunk["model"] for chunk in chunks} == {MODEL}
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    plain = api.post(path, json=body | {"stream": False}).json()
    assert text == plain["choices"][0]["message"]["content"]


@pytest.mark.parametrize("version", ["", "/1.0"])
def test_a_plain_prediction_has_torchserves_body_and_answer(
    api: httpx.Client, version: str
) -> None:
    body = {"prompt": "Hello, my name is", "max_new_tokens": 5, "temperature": 0}
    answer = api.post(f"/predictions/{MODEL}{version}", json=body)
    assert answer.status_code == 200, answer.text
    direct = api.post(
        "/v1/completions",
        json={"model": MODEL, "prompt": body["prompt"], "max_tokens": 5, "temperature": 0},
    ).json()["choices"][0]
    assert answer.json()["text"] == direct["text"]
    assert set(answer.json()) == {"text", "tokens"}
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert answer.headers["x-flotilla-job-id"]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        (f"{MODEL}", {"max_new_tokens": 5}, 400, None),
        (f"{MODEL}", {"prompt": "x", "stream": True}, 400, None),
        (f"{MODEL}/2.0", {"prompt": "x"}, 404, "model_not_found"),
        ("nothing", {"prompt": "x"}, 404, "model_not_found"),
        ("nothing/v1/completions", {"prompt": "x"}, 404, "model_not_found"),
        (f"{MODEL}/v1/nothing", {"prompt": "x"}, 404, "unknown_route"),
    ],
)
def test_a_wrong_prediction_has_its_own_error(
    api: httpx.Client, path: str, body: dict[str, object], status: int, code: str | None
) -> None:
    answer = api.post(f"/predictions/{path}", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text


def test_a_prediction_needs_a_key(gateway: Process) -> None:
    answer = http.post(f"{gateway.url}/predictions/{MODEL}", json={"prompt": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("version", ["", "/1.0"])
def test_the_list_with_one_model(api: httpx.Client, method: str, version: str) -> None:
    answer = api.request(method, f"/predictions/{MODEL}{version}/v1/models")
    assert [card["id"] for card in answer.json()["data"]] == [MODEL]


# --- management ---


def test_the_models_in_pages(api: httpx.Client) -> None:
    assert api.get("/models").json() == {"models": [{"modelName": MODEL, "modelUrl": "simulated"}]}
    assert api.get("/models", params={"limit": 1, "next_page_token": 1}).json() == {"models": []}
    assert api.get("/models", params={"limit": 0}).status_code == 400


@pytest.mark.parametrize("version", ["", "/1.0", "/all"])
def test_a_description_of_a_model(api: httpx.Client, version: str) -> None:
    (found,) = api.get(f"/models/{MODEL}{version}").json()
    assert (found["modelName"], found["modelVersion"]) == (MODEL, "1.0")
    (worker,) = found["workers"]
    assert worker["status"] == "READY"
    assert found["jobQueueStatus"]["pendingRequests"] == 0
    assert found["jobQueueStatus"]["remainingCapacity"] > 0
    assert "customizedMetadata" not in found
    (customized,) = api.get(f"/models/{MODEL}{version}", params={"customized": True}).json()
    assert customized["customizedMetadata"]["id"] == MODEL
    assert api.get("/models/nothing").status_code == 404


def test_the_number_of_workers_is_the_autoscalers_range(
    api: httpx.Client, operator: httpx.Client, redis_server: RedisServer
) -> None:
    path = f"/models/{MODEL}"
    refused = api.put(path, params={"min_worker": 1})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_scope")
    silent = operator.put(path, params={"min_worker": 1})
    assert (silent.status_code, silent.json()["error"]["code"]) == (503, "autoscaler_silent")
    assert decided(redis_server.url, "0:3") == (0, 3)

    def accepted() -> bool:
        scaled = operator.put(path, params={"min_worker": 1, "max_worker": 2})
        processing = {"status": "Processing worker updates..."}
        return scaled.status_code == 202 and bool(scaled.json() == processing)

    wait_for(accepted, "the gateway has the decision")
    assert decided(redis_server.url, "0:3") == (1, 2)
    done = operator.put(path, params={"max_worker": 1, "synchronous": True})
    assert (done.status_code, done.json()["status"]) == (
        200,
        f"Workers scaled to 1 for model: {MODEL}, version: 1.0",
    )
    assert decided(redis_server.url, "0:3") == (1, 1)
    assert decided(redis_server.url, "0:5") == (0, 5)  # new settings end the operator's range
    for wrong in ({"max_worker": 0}, {"min_worker": 3, "max_worker": 2}, {"min_worker": -1}):
        assert operator.put(path, params=wrong).status_code == 400


def decided(redis_url: str, workers: str) -> tuple[int, int]:
    """The range of workers in the decision of one tick of the autoscaler."""

    async def once() -> tuple[int, int]:
        async with open_queue(redis_url) as queue:
            settings = Settings(autoscale=f"{MODEL}={workers}", pool=POOL)
            redis = queue.servers.primary
            await tick(queue, Registry(redis), settings, settings.described)
            _, scales = await ScaleStore(redis).read([POOL])
            return scales[POOL].limits.min, scales[POOL].limits.max

    return asyncio.run(once())


VERSIONS = """
pools:
  first: {engine: simulated, served_names: [chat], version: "1.0", weight: 99}
  second: {engine: simulated, served_names: [chat], version: "2.0", weight: 1}
"""


def test_a_default_version_gets_the_requests_that_name_none(
    own_redis: RedisServer, tmp_path: Path
) -> None:
    """By weight the first version would get nearly all of them."""
    config = tmp_path / "flotilla.yaml"
    config.write_text(VERSIONS)
    stack = Stack(own_redis.url, tmp_path)
    try:
        for pool in ("first", "second"):
            stack.worker(config=str(config), pool=pool, engine=None)
        gateway = stack.gateway(
            config=str(config), api_keys="team:s3cret", admin_keys="ops:0perator"
        )
        _set_default(gateway)
    finally:
        stack.close()


def _set_default(gateway: Process) -> None:
    with httpx.Client(base_url=gateway.url, timeout=30, headers=OPERATOR) as api:
        wait_for(lambda: len(api.get("/models/chat/all").json()) == 2, "both are known")
        assert [model["modelName"] for model in api.get("/models").json()["models"]] == ["chat"]
        assert api.get("/models/chat").json()[0]["modelVersion"] == "1.0"
        assert api.put("/models/chat/3.0/set-default").status_code == 404
        done = api.put("/models/chat/2.0/set-default")
        assert done.json() == {
            "status": 'Default version successfully updated for model "chat" to "2.0"'
        }
        assert api.get("/models/chat").json()[0]["modelVersion"] == "2.0"
        body = {"prompt": "x", "max_tokens": 2}
        pools = set()
        for path in ("/predictions/chat/v1/completions", "/v1/completions"):
            for _ in range(5):
                answer = api.post(path, json=body | {"model": "chat"})
                job = api.get(f"/jobs/{answer.headers['x-flotilla-job-id']}").json()
                pools.add(job["pool"])
        assert pools == {"second"}
        answer = api.post("/predictions/chat/1.0/v1/completions", json=body)
        job = api.get(f"/jobs/{answer.headers['x-flotilla-job-id']}").json()
        assert job["pool"] == "first"


def test_the_api_describes_itself(api: httpx.Client) -> None:
    described = api.request("OPTIONS", "/").json()
    assert "/predictions/{model}" in described["paths"]
    assert described == api.get("/openapi.json").json()
