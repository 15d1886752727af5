"""TorchServe's calls, as its guides and its client for vLLM send them; only the host differs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.harness.client import http
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for

MODEL = "org/model"
"""With a slash, as a hub's names have."""
POOL = "the-pool"
TEAM = {"authorization": "Bearer s3cret"}


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    """A gateway with keys, and one worker."""
    module_stack.worker(served_model_name=MODEL, pool=POOL, sim_step_ms=2, sim_step_us_per_seq=0)
    gateway = module_stack.gateway(api_keys="team:s3cret")

    def ready() -> bool:
        return http.get(f"{gateway.url}/readyz").json()["status"] == "ready"

    wait_for(ready, "the model is known")
    return gateway


@pytest.fixture
def api(gateway: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=30, headers=TEAM) as client:
        yield client


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
    plain = api.post(f"{path}/", json=body | {"stream": False}).json()
    assert text == plain["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        (f"{MODEL}/v1/completions", {"prompt": "x", "stream": 3}, 400, None),
        (f"{MODEL}/2.0/v1/completions", {"prompt": "x"}, 404, "model_not_found"),
        (MODEL, {"prompt": "x"}, 404, "unknown_route"),
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
    answer = http.post(f"{gateway.url}/predictions/{MODEL}/v1/completions", json={"prompt": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("version", ["", "/1.0"])
def test_the_list_with_one_model(api: httpx.Client, method: str, version: str) -> None:
    answer = api.request(method, f"/predictions/{MODEL}{version}/v1/models")
    assert [card["id"] for card in answer.json()["data"]] == [MODEL]


def test_the_models_in_pages(api: httpx.Client) -> None:
    assert api.get("/models").json() == {"models": [{"modelName": MODEL, "modelUrl": "simulated"}]}
    assert api.get("/models", params={"limit": 1, "next_page_token": 1}).json() == {"models": []}
    assert api.get("/models", params={"limit": 0}).status_code == 400


@pytest.mark.parametrize("version", ["", "/1.0"])
def test_a_description_of_a_model(api: httpx.Client, version: str) -> None:
    (found,) = api.get(f"/models/{MODEL}{version}").json()
    assert (found["modelName"], found["modelVersion"]) == (MODEL, "1.0")
    (worker,) = found["workers"]
    assert worker["status"] == "READY"
    assert api.get("/models/nothing").status_code == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/models"),
        ("PUT", f"/models/{MODEL}"),
        ("PUT", f"/models/{MODEL}/1.0/set-default"),
        ("DELETE", f"/models/{MODEL}/1.0"),
    ],
)
def test_models_are_not_managed(api: httpx.Client, method: str, path: str) -> None:
    answer = api.request(method, path, params={"min_worker": 1})
    assert answer.status_code in (404, 405), answer.text
    assert api.get(f"/models/{MODEL}").status_code == 200


VERSIONS = """
pools:
  first: {engine: simulated, served_names: [chat], version: "1.0", weight: 99}
  second: {engine: simulated, served_names: [chat], version: "2.0", weight: 1}
"""


def test_a_version_is_named_in_the_path(own_redis: RedisServer, tmp_path: Path) -> None:
    config = tmp_path / "flotilla.yaml"
    config.write_text(VERSIONS)
    with contextlib.closing(Stack(own_redis.url, tmp_path)) as stack:
        for pool in ("first", "second"):
            stack.worker(config=str(config), pool=pool, engine=None)
        gateway = stack.gateway(config=str(config), api_keys="team:s3cret")
        with httpx.Client(base_url=gateway.url, timeout=30, headers=TEAM) as api:
            for version, pool in (("1.0", "first"), ("2.0", "second")):
                path = f"/models/chat/{version}"
                wait_for(lambda path=path: api.get(path).is_success, "it is known")
                assert api.get(path).json()[0]["modelVersion"] == version
                body = {"prompt": "x", "max_tokens": 2}
                answer = api.post(f"/predictions/chat/{version}/v1/completions", json=body)
                job = api.get(f"/jobs/{answer.headers['x-flotilla-job-id']}").json()
                assert job["pool"] == pool
            listed = api.get("/models").json()["models"]
            assert [model["modelName"] for model in listed] == ["chat"]
            assert api.get("/models/chat").json()[0]["modelVersion"] == "1.0"
