"""A flex job that makes room for other jobs has the answer of an undisturbed one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.client import CHAT
from tests.harness.waiting import wait_for
from tests.vllm.conftest import ModelFleet
from tests.vllm.same_answer import difference

pytestmark = pytest.mark.vllm

MODEL = "one-slot"
COMPLETIONS = "/v1/completions"
STORY = [{"role": "user", "content": "Tell me a story about a queue."}]
LONG = {"max_tokens": 600, "ignore_eos": True}
"""The urgent jobs come long before the end."""
SEEDED = {"temperature": 1.5, "seed": 11}
CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (
        CHAT,
        {
            "messages": STORY,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ),
    "seeded with penalties and log probabilities": (
        COMPLETIONS,
        {
            "prompt": "Once upon a time",
            "presence_penalty": 1.5,
            "repetition_penalty": 1.2,
            "logprobs": 2,
            **SEEDED,
        },
    ),
    "regular expression": (
        CHAT,
        {
            "messages": STORY,
            "stream": True,
            "structured_outputs": {"regex": "([a-z]{3,9} ){300}"},
            **SEEDED,
        },
    ),
}
INTERRUPTIONS = 2


@pytest.fixture
def api(fleet: ModelFleet) -> Iterator[httpx.Client]:
    """The gateway of a worker with one slot."""
    url = fleet.serve(MODEL).gateway_url
    with httpx.Client(base_url=url, timeout=120) as client:
        yield client


def submit(api: httpx.Client, path: str, body: dict[str, Any], lane: str) -> str:
    wanted = {"endpoint": path, "body": {"model": MODEL, **body}, "lane": lane}
    reply = api.post("/jobs", json=wanted)
    assert reply.status_code == 202, reply.text
    return str(reply.json()["id"])


def shown(api: httpx.Client, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"/jobs/{job_id}").json()
    return found


def answer(api: httpx.Client, job_id: str) -> httpx.Response:
    """The answer of a job that has been submitted."""
    wait_for(lambda: shown(api, job_id)["state"] == "completed", "it is answered", 120)
    return api.get(f"/jobs/{job_id}/result")


@pytest.mark.parametrize("name", CLASSES)
def test_the_answer_is_that_of_an_undisturbed_job(name: str, api: httpx.Client) -> None:
    path, fields = CLASSES[name]
    body = LONG | fields
    undisturbed = answer(api, submit(api, path, body, "default"))
    job_id = submit(api, path, body, "flex")
    for _ in range(INTERRUPTIONS):
        wait_for(lambda: shown(api, job_id)["state"] != "queued", "it runs")
        urgent = {"prompt": "now", "max_tokens": 2, "temperature": 0}
        answer(api, submit(api, COMPLETIONS, urgent, "default"))
    assert difference(answer(api, job_id), undisturbed) == ""
    attempts = [attempt["outcome"] for attempt in shown(api, job_id)["attempts"]]
    assert "handed_back" in attempts, attempts
