"""What careless clients send and vLLM takes: marks in front of bodies, texts for values."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.client import CHAT, chat
from tests.harness.fleet import Stack
from tests.harness.waiting import wait_for

ANN, BOB = "key-of-ann-123456", "key-of-bob-123456"
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def api(module_stack: Stack) -> Iterator[httpx.Client]:
    module_stack.worker(sim_step_ms=2, sim_step_us_per_seq=0)
    gateway = module_stack.gateway(api_keys=f"ann:{ANN},bob:{BOB}", max_choices=4)
    headers = {"authorization": f"Bearer {ANN}"}
    with httpx.Client(base_url=gateway.url, headers=headers, timeout=60) as client:
        yield client


def is_stream(answer: httpx.Response) -> bool:
    assert answer.status_code == 200, answer.text
    streamed = answer.headers["content-type"].startswith("text/event-stream")
    assert streamed == answer.text.endswith("data: [DONE]\n\n")
    return streamed


@pytest.mark.parametrize("pad", [0, 100_000])
def test_a_byte_order_mark_in_front_of_a_body(api: httpx.Client, pad: int) -> None:
    body = json.dumps(chat(max_tokens=2, user="x" * pad)).encode()
    answer = api.post(CHAT, content=codecs.BOM_UTF8 + body, headers=JSON)
    assert answer.status_code == 200, answer.text
    job = json.dumps({"body": chat(max_tokens=2)}).encode()
    assert api.post("/jobs", content=codecs.BOM_UTF8 + job, headers=JSON).status_code == 202
    for wrong in (codecs.BOM_UTF8, 2 * codecs.BOM_UTF8 + body):
        assert api.post(CHAT, content=wrong, headers=JSON).status_code == 400


def test_variables_of_a_chat_template_need_no_permission(api: httpx.Client) -> None:
    taken = chat(max_tokens=2, chat_template_kwargs={"enable_thinking": False, "date": "today"})
    assert api.post(CHAT, json=taken).status_code == 200
    for other in ({"chat_template": "x"}, {"tokenize": True}, {"max_length": 10**9}):
        refused = api.post(CHAT, json=chat(chat_template_kwargs={"date": "today"} | other))
        assert refused.status_code == 400
        assert "FLOTILLA_ALLOW_FIELDS" in refused.json()["error"]["message"]


@pytest.mark.parametrize("value", ["true", "True", "yes", "1", "on", 1, 1.0])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_what_stands_for_true(api: httpx.Client, path: str, value: Any) -> None:
    body = {**chat(max_tokens=2, stream=value), "prompt": "x"}
    assert is_stream(api.post(path, json=body))


@pytest.mark.parametrize("value", ["false", "OFF", "no", "0", 0, 0.0, None])
def test_what_stands_for_false(api: httpx.Client, value: Any) -> None:
    assert not is_stream(api.post(CHAT, json=chat(max_tokens=2, stream=value)))


@pytest.mark.parametrize("value", ["", "maybe", 2, 0.5, [], {"a": 1}])
def test_what_stands_for_neither(api: httpx.Client, value: Any) -> None:
    error = api.post(CHAT, json=chat(max_tokens=2, stream=value))
    assert (error.status_code, error.json()["error"]["param"]) == (400, "stream")


@pytest.mark.parametrize("value", ["3", 3.0, " 3 "])
def test_numbers_as_texts(api: httpx.Client, value: Any) -> None:
    text = "\N{SNOWMAN}\ud83d\ude00 \\u0041".encode("utf-16", "surrogatepass").decode("utf-16")
    for path, more in ((CHAT, {}), ("/v1/completions", {"prompt": [text, "b"]})):
        fields = {"max_tokens": value, "n": value, "ignore_eos": True, **more}
        answers = [
            api.post(path, json=chat(text, **fields | plain))
            for plain in ({}, {"max_tokens": 3, "n": 3})
        ]
        lenient, strict = (answer.json() for answer in answers)
        assert lenient["usage"] == strict["usage"]
        assert [each["index"] for each in lenient["choices"]] == list(range(len(strict["choices"])))


COMPLETIONS, RESPONSES = "/v1/completions", "/v1/responses"
MANY = 1_000_000
LIMITED: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "n": (CHAT, "n", 5, {}),
    "best_of": (COMPLETIONS, "best_of", 5, {}),
    "n of prompts": (COMPLETIONS, "n", 4, {"prompt": ["x"] * 200}),
    "logprobs": (COMPLETIONS, "logprobs", 21, {}),
    "top_logprobs": (CHAT, "top_logprobs", 21, {"logprobs": "true"}),
    "prompt_logprobs": (COMPLETIONS, "prompt_logprobs", 21, {}),
    "top_logprobs of a response": (RESPONSES, "top_logprobs", 21, {}),
    "max_tokens": (CHAT, "max_tokens", MANY, {"logprobs": "1", "top_logprobs": "9", "stream": 1}),
    "max_tokens, many choices": (COMPLETIONS, "max_tokens", MANY, {"n": "4", "logprobs": "9"}),
    "max_completion_tokens": (
        CHAT,
        "max_completion_tokens",
        MANY,
        {"logprobs": True, "top_logprobs": 9.0, "stream": "yes"},
    ),
    "max_output_tokens": (RESPONSES, "max_output_tokens", MANY, {"top_logprobs": 9.0}),
}


@pytest.mark.parametrize("name", LIMITED)
def test_limits_hold_for_numbers_as_texts(api: httpx.Client, name: str) -> None:
    path, field, value, more = LIMITED[name]
    body = {**chat(), "prompt": "x", "input": "x"} | more
    if path != CHAT:
        del body["messages"]
    of_integer = api.post(path, json=body | {field: value})
    assert of_integer.status_code == 400, of_integer.text
    for same in (str(value), f" {value}.0 ", float(value)):
        refused = api.post(path, json=body | {field: same})
        assert (refused.status_code, refused.json()) == (400, of_integer.json())
        job = api.post("/jobs", json={"endpoint": path, "body": body | {field: same}})
        assert (job.status_code, job.json()["error"]["message"]) == (
            400,
            of_integer.json()["error"]["message"],
        )


def test_a_job_with_texts_for_values(api: httpx.Client) -> None:
    body = chat(max_tokens="3", stream="true", ignore_eos=True)
    job = api.post("/jobs", json={"body": body}).json()["id"]
    wait_for(lambda: api.get(f"/jobs/{job}").json()["state"] == "completed", "it completes")
    assert is_stream(api.get(f"/jobs/{job}/result"))


def test_two_different_keys_are_named(api: httpx.Client) -> None:
    for first, second in ((ANN, BOB), (ANN, "wrong"), ("wrong", ANN)):
        sent = {"authorization": f"Bearer {first}", "x-api-key": second}
        error = api.get("/v1/models", headers=sent).json()["error"]
        assert error["code"] == "invalid_api_key"
        assert "`Authorization`" in error["message"]
        assert "`x-api-key`" in error["message"]
        assert ANN not in error["message"]
        none = api.get("/v1/models", headers={"authorization": ""}).json()["error"]
        assert none["message"] != error["message"]
    same = {"authorization": f"Bearer {ANN}", "x-api-key": ANN}
    assert api.get("/v1/models", headers=same).status_code == 200
