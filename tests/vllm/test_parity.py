"""The same requests to vLLM's own application and through the gateway have the same answers.

Status, headers that matter, and body, but for ids and times. Where the gateway answers in its own
words, the case says why, and the status is the same unless the case has another one.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.harness.client import http
from tests.harness.waiting import wait_for
from tests.vllm.conftest import ServedModel
from tests.vllm.parity_cases import CHAT, COMPLETIONS, GENERATE, Case, chat
from tests.vllm.pooling_cases import CLASSIFY, EMBED, SCORES
from tests.vllm.same_answer import difference

pytestmark = pytest.mark.vllm

JSON = {"content-type": "application/json"}


def compare(model: ServedModel, case: Case) -> None:
    """Send the request to both."""
    ours, theirs = (
        http.request(
            case.method,
            url + case.path,
            content=case.content(model.name),
            headers={"content-type": case.content_type},
            timeout=120,
        )
        for url in (model.gateway_url, model.direct_url)
    )
    if case.own_words:
        assert ours.status_code == (case.status or theirs.status_code), ours.text
        assert ours.json()["error"]["message"]
        return
    assert difference(ours, theirs) == ""
    # vLLM reads decisions from models of two architectures only, none of them small.
    assert ours.status_code < 500 or case.path == "/v1/systemone"
    if ours.status_code == 200:
        assert ours.headers["x-flotilla-job-id"]
    if case.path in (CHAT, COMPLETIONS) and ours.status_code == 200 and '"error"' not in ours.text:
        assert ours.headers["x-flotilla-job-id"] in ours.text


def name_of(case: Case) -> str:
    """For pytest's list of tests."""
    return case.name


@pytest.mark.parametrize("case", GENERATE, ids=name_of)
def test_a_generative_model(case: Case, demo: ServedModel) -> None:
    compare(demo, case)


@pytest.mark.parametrize("case", EMBED, ids=name_of)
def test_a_model_that_embeds(case: Case, embedder: ServedModel) -> None:
    compare(embedder, case)


@pytest.mark.parametrize("case", CLASSIFY, ids=name_of)
def test_a_classifier(case: Case, classifier: ServedModel) -> None:
    compare(classifier, case)


@pytest.mark.parametrize("case", SCORES, ids=name_of)
def test_a_cross_encoder(case: Case, reranker: ServedModel) -> None:
    compare(reranker, case)


def test_a_stream_has_the_same_bytes(demo: ServedModel) -> None:
    """In a run in which no chunk has several tokens, as nothing was late."""
    body = chat(model=demo.name, stream=True, max_tokens=12, stream_options={"include_usage": True})

    def stream(url: str) -> str:
        text = http.post(url + CHAT, content=json.dumps(body), headers=JSON, timeout=120).text
        return re.sub(r'"id":"[^"]*"|"created":\d+', "", text)

    wait_for(lambda: stream(demo.gateway_url) == stream(demo.direct_url), "they are the same")
