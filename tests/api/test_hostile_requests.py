"""Bodies and calls that are made to keep a fleet busy: refused, or answered in a small piece.

Another tenant is served meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.harness.client import CHAT, MODEL, Call, chat, join
from tests.harness.fleet import Process, Stack
from tests.harness.keys import bearer

ANN, BOB = bearer("key-of-ann-123456"), bearer("key-of-bob-123456")
MB = 1 << 20
CONVERSATIONS = "/v1/conversations"
URL = "http://127.0.0.1:9/picture.png"


def _list_of(value: str, n: int) -> str:
    return f"[{','.join([value] * n)}]"


VALUES = {
    "objects": f'"x": {_list_of("{}", MB)}',
    "lists": f'"x": {_list_of("[]", MB)}',
    "keys": '"x": {' + ",".join(f'"k{n}":0' for n in range(MB // 2)) + "}",
    "messages": f'"messages": {_list_of(json.dumps(chat()["messages"][0]), MB // 4)}',
    "wrong messages": f'"messages": {_list_of("{}", MB)}',
}
"""Members of a body of many MB, with very many values."""
FETCHED: dict[str, tuple[str, dict[str, Any]]] = {
    "a picture": (
        CHAT,
        {
            "messages": [
                {
                    "role": "user",
                    "type": "tool_use",
                    "content": [{"type": "image_url", "image_url": {"url": URL}}],
                }
            ]
        },
    ),
    "a picture in a conversation": (
        CONVERSATIONS,
        {"items": [{"role": "user", "content": [{"type": "input_image", "image_url": URL}]}]},
    ),
    "pictures to embed": ("/v2/embed", {"images": [URL]}),
    "sound and films": ("/v1/systemone", {"images": [URL], "audio": [URL], "videos": [URL]}),
    "a tensor": (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "prompt_embeds", "data": "eA=="}]}]},
    ),
}
"""Ways to have a worker fetch a URL, or unpickle a tensor."""


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    module_stack.worker(sim_step_ms=5, sim_max_model_len=1_000_000, sim_prefill_us_per_token=0)
    return module_stack.gateway(api_keys="ann:key-of-ann-123456,bob:key-of-bob-123456")


@pytest.fixture
def api(gateway: Process) -> Iterator[httpx.Client]:
    """Ann's calls, while an answer of Bob's streams, which has to be whole."""
    body = chat(max_tokens=200, ignore_eos=True, stream=True)
    neighbour = Call(gateway, body, headers=BOB)
    with httpx.Client(base_url=gateway.url, headers=ANN, timeout=60) as api:
        yield api
    join([neighbour])
    assert (neighbour.status, neighbour.error) == (200, "")


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("model", [MODEL, "no-such-model"])
def test_a_body_of_very_many_values_is_refused(api: httpx.Client, model: str, name: str) -> None:
    body = f'{{"model": "{model}", "max_tokens": 1, {VALUES[name]}}}'
    for _ in range(3):
        answer = api.post(CHAT, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 413, answer.text[:500]
        assert answer.json()["error"]["code"] == "body_too_large"


@pytest.mark.parametrize("name", FETCHED)
def test_nothing_is_fetched_or_unpickled(api: httpx.Client, name: str) -> None:
    path, fields = FETCHED[name]
    answer = api.post(path, json={"model": MODEL, "max_tokens": 1, **fields})
    assert answer.status_code in {400, 404}, answer.text[:500]


def test_a_list_of_large_jobs_is_small(api: httpx.Client) -> None:
    body = chat("x" * MB, max_tokens=1)
    for _ in range(20):
        assert api.post("/jobs", json={"body": body}).status_code == 202
    for query in ("", "&model=nobody"):
        answer = api.get(f"/jobs?limit=100{query}")
        assert answer.status_code == 200
        assert len(answer.content) < MB


def test_an_answer_of_very_many_log_probabilities_is_refused(api: httpx.Client) -> None:
    body = chat(n=64, max_tokens=300, ignore_eos=True, logprobs=True, top_logprobs=20)
    for path, sent in ((CHAT, body), ("/jobs", {"body": body})):
        answer = api.post(path, json=sent)
        assert answer.status_code == 400, answer.text[:500]
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_page_of_a_large_conversation_is_small(api: httpx.Client) -> None:
    made = api.post(CONVERSATIONS, json={}).json()["id"]
    item = {"role": "user", "content": "x" * (MB // 2)}
    for _ in range(6):
        answer = api.post(f"{CONVERSATIONS}/{made}/items", json={"items": [item]})
        assert answer.status_code == 200, answer.text[:500]

    def page(_: int) -> httpx.Response:
        return api.get(f"{CONVERSATIONS}/{made}/items", params={"limit": 1})

    with ThreadPoolExecutor(10) as clients:
        for answer in clients.map(page, range(10)):
            assert answer.status_code == 200, answer.text[:500]
            assert len(answer.json()["data"]) == 1
            assert len(answer.content) < MB


def test_a_filter_of_very_many_stars_is_refused(api: httpx.Client) -> None:
    refused = api.get("/jobs", params={"filter": "id:0" + "*a" * 330})
    assert refused.status_code == 400, refused.text[:500]
    assert api.get("/jobs", params={"filter": "id:0" + "*a" * 16}).status_code == 200
