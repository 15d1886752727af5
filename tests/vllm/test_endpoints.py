"""Models for other tasks than chats on real vLLM: labels, scores, bytes, many inputs, jobs."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import httpx
import openai
import pytest

from tests.harness.client import http
from tests.harness.models import LABELS
from tests.vllm.conftest import ServedModel
from tests.vllm.same_answer import difference

pytestmark = pytest.mark.vllm

TEXTS = ["A worker takes a job.", "Tokens come back.", "The wind blows over the harbour."]
TALK = [{"role": "user", "content": "What is a lane?"}]
_WRONG_TOKENS: list[tuple[str, dict[str, Any]]] = [
    ("/detokenize", {"tokens": ["a"]}),
    ("/detokenize", {"tokens": [-1]}),
    ("/generative_scoring", {"query": [7], "items": [[-1]], "label_token_ids": [5]}),
]


def _names(cases: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return [f"{number}{path}" for number, (path, _) in enumerate(cases)]


def _compare(model: ServedModel, path: str, body: dict[str, Any]) -> httpx.Response:
    """The gateway's answer, which is vLLM's own."""
    fields = {"model": model.name, "temperature": 0} | body
    ours, theirs = (
        http.post(url + path, json=fields, timeout=120)
        for url in (model.gateway_url, model.direct_url)
    )
    assert difference(ours, theirs) == ""
    assert ours.status_code < 500
    return ours


@pytest.mark.parametrize(("path", "body"), _WRONG_TOKENS, ids=_names(_WRONG_TOKENS))
def test_wrong_token_ids_are_refused(demo: ServedModel, path: str, body: dict[str, Any]) -> None:
    fields = {"model": demo.name} | body
    ours, theirs = (
        http.post(url + path, json=fields, timeout=120)
        for url in (demo.gateway_url, demo.direct_url)
    )
    assert ours.status_code == theirs.status_code == 400


def test_the_labels_are_the_models_own(classifier: ServedModel) -> None:
    data = _compare(classifier, "/classify", {"input": TEXTS}).json()["data"]
    assert [item["num_classes"] for item in data] == [len(LABELS)] * len(TEXTS)
    assert {item["label"] for item in data} <= set(LABELS)


def test_documents_are_ordered_by_their_scores(reranker: ServedModel) -> None:
    asked = {"query": TEXTS[0], "documents": TEXTS}
    results = _compare(reranker, "/rerank", asked).json()["results"]
    scores = _compare(reranker, "/score", {"queries": TEXTS[0], "documents": TEXTS}).json()["data"]
    by_index = {item["index"]: item["score"] for item in scores}
    found = [result["relevance_score"] for result in results]
    assert found == sorted(found, reverse=True)
    assert {result["index"]: result["document"]["text"] for result in results} == dict(
        enumerate(TEXTS)
    )
    for result in results:
        assert result["relevance_score"] == pytest.approx(by_index[result["index"]], abs=1e-4)


def test_bytes_are_the_same_numbers_as_base64(embedder: ServedModel) -> None:
    whole = _compare(embedder, "/v1/embeddings", {"input": TEXTS, "encoding_format": "bytes"})
    assert whole.headers["content-type"] == "application/octet-stream"
    encoded = _compare(embedder, "/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"})
    for item in json.loads(whole.headers["metadata"])["data"]:
        numbers = _floats(whole.content[item["start"] : item["end"]])
        data = base64.b64decode(encoded.json()["data"][item["index"]]["embedding"])
        assert numbers == pytest.approx(_floats(data), abs=1e-4)


def _floats(data: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def test_openais_sdk_gets_embeddings(embedder: ServedModel) -> None:
    with openai.OpenAI(base_url=f"{embedder.gateway_url}/v1", api_key="any") as client:
        answer = client.embeddings.create(model=embedder.name, input=TEXTS)
    assert [item.index for item in answer.data] == [0, 1, 2]
    assert sum(number**2 for number in answer.data[0].embedding) == pytest.approx(1, abs=1e-3)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0


def test_a_job_keeps_an_answer_of_bytes_with_its_header(embedder: ServedModel) -> None:
    body = {"model": embedder.name, "input": TEXTS, "encoding_format": "bytes"}
    asked = {"endpoint": "/v1/embeddings", "body": body}
    with httpx.Client(base_url=embedder.gateway_url, timeout=120) as api:
        job = api.post("/jobs", json=asked).json()
        ended = api.get(f"/jobs/{job['id']}?wait=60").json()
        result = api.get(f"/jobs/{job['id']}/result")
    assert ended["state"] == "completed"
    assert ended["usage"]["prompt_tokens"] > 0
    assert "result" not in ended  # it is not JSON
    assert result.headers["content-type"] == "application/octet-stream"
    assert len(json.loads(result.headers["metadata"])["data"]) == len(TEXTS)


def test_a_thousand_inputs_in_one_call(embedder: ServedModel) -> None:
    texts = [f"Text number {number}." for number in range(1000)]
    body = {"model": embedder.name, "input": texts, "encoding_format": "base64"}
    answer = http.post(f"{embedder.gateway_url}/v1/embeddings", json=body, timeout=120)
    assert [item["index"] for item in answer.json()["data"]] == list(range(1000))


def test_more_inputs_than_allowed_are_refused(embedder: ServedModel) -> None:
    body = {"model": embedder.name, "input": ["x"] * 2049}
    answer = http.post(f"{embedder.gateway_url}/v1/embeddings", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "input"


def test_an_invocation_streams(demo: ServedModel) -> None:
    body = {"model": demo.name, "messages": TALK, "max_tokens": 6, "stream": True}
    answer = http.post(f"{demo.gateway_url}/invocations", json=body, timeout=120)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.endswith("data: [DONE]\n\n")
    chunks = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    assert json.loads(chunks[-1])["object"] == "chat.completion.chunk"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_model_without_the_task_does_not_serve_the_route(
    embedder: ServedModel, path: str
) -> None:
    body = {"model": embedder.name, "messages": TALK, "prompt": "x"}
    answer = http.post(embedder.gateway_url + path, json=body, timeout=120)
    assert answer.status_code == 404
    assert answer.json()["error"]["message"].startswith("This model does not serve POST " + path)
