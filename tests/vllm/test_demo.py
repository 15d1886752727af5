"""The demo model on real vLLM: OpenAI's unmodified SDK, jobs, cancelled requests and metrics."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.harness.client import CHAT, http, job
from tests.harness.waiting import eventually, wait_for
from tests.vllm.conftest import ModelFleet, ServedModel

pytestmark = pytest.mark.vllm

COMPLETIONS = "/v1/completions"
QUESTION: list[Any] = [{"role": "user", "content": "What is Flotilla?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
ASK_WEATHER: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 80}
ENDLESS = {"messages": QUESTION, "max_tokens": 3000, "ignore_eos": True}
"""A test ends it long before its last token."""


@pytest.fixture
def sdk(demo: ServedModel) -> Iterator[OpenAI]:
    url = f"{demo.gateway_url}/v1"
    with OpenAI(base_url=url, api_key="any", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
def one_slot(fleet: ModelFleet) -> ServedModel:
    """The demo model in a worker that runs one request at a time."""
    return fleet.serve("one-slot")


def test_a_tool_call_through_the_sdk(demo: ServedModel, sdk: OpenAI) -> None:
    answer = sdk.chat.completions.create(
        model=demo.name, messages=ASK_WEATHER, tools=[WEATHER], **GREEDY
    )
    (tool_call,) = answer.choices[0].message.tool_calls
    assert tool_call.function.name == "get_weather"
    assert json.loads(tool_call.function.arguments) == {"city": "Paris"}
    assert answer.choices[0].finish_reason == "tool_calls"


def test_errors_through_the_sdk(demo: ServedModel, sdk: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        sdk.chat.completions.create(model="nope", messages=QUESTION)
    with pytest.raises(openai.BadRequestError):
        sdk.chat.completions.create(model=demo.name, messages=QUESTION, temperature=-1)


def tokens_made(model: ServedModel) -> float:
    return model.worker.metric("vllm:generation_tokens_total")


def check_has_been_aborted(model: ServedModel, before: float) -> None:
    """Fail unless the engine's only slot is free, and not because ENDLESS has all its tokens."""
    short = {"model": model.name, "prompt": "x", "max_tokens": 1}
    answer = http.post(f"{model.gateway_url}{COMPLETIONS}", json=short, timeout=120)
    assert answer.status_code == 200, answer.text
    assert tokens_made(model) - before < ENDLESS["max_tokens"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_disconnect_aborts_the_engines_request(stream: bool, one_slot: ServedModel) -> None:
    before = tokens_made(one_slot)
    async with httpx.AsyncClient(base_url=one_slot.gateway_url, timeout=120) as api:
        body = {"model": one_slot.name, "stream": stream, **ENDLESS}
        request = asyncio.create_task(api.post(CHAT, json=body))

        async def runs() -> bool:
            return tokens_made(one_slot) > before

        await eventually(runs, "it runs")
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
    check_has_been_aborted(one_slot, before)


def test_running_text_and_cancel(one_slot: ServedModel) -> None:
    before = tokens_made(one_slot)
    with httpx.Client(base_url=one_slot.gateway_url, timeout=120) as api:
        submitted = api.post("/jobs", json={"body": {"model": one_slot.name, **ENDLESS}})
        path = submitted.headers["location"]
        shown = wait_for(lambda: api.get(path).json().get("text"), "some text is there")
        cancelled = api.post(f"{path}/cancel").json()
    assert cancelled["state"] == "cancelled"
    assert cancelled["text"].startswith(shown)
    check_has_been_aborted(one_slot, before)


def test_a_job_from_submit_to_result(demo: ServedModel, fleet: ModelFleet) -> None:
    body = {"model": demo.name, "messages": QUESTION, **GREEDY}
    with httpx.Client(base_url=demo.gateway_url, timeout=120) as api:
        submitted = api.post("/jobs", json={"endpoint": CHAT, "body": body})
        assert submitted.status_code == 202
        path, job_id = submitted.headers["location"], submitted.json()["id"]
        wait_for(lambda: job(fleet.gateway, job_id)["state"] == "completed", "it completes")
        done = job(fleet.gateway, job_id)
        direct = api.post(CHAT, json=body).json()
        events = api.get(f"{path}/events").text
    assert done["result"]["choices"] == direct["choices"]
    assert done["usage"] == {name: direct["usage"][name] for name in done["usage"]}
    assert done["text"] == direct["choices"][0]["message"]["content"]
    deltas = re.findall(r"^event: delta\nid: \d+\ndata: (.*)$", events, re.MULTILINE)
    text = "".join(choice["text"] for d in deltas for choice in json.loads(d)["choices"])
    assert text == done["text"]


def test_vllms_own_metrics_are_exported_too(demo: ServedModel) -> None:
    assert demo.worker.has("vllm:num_requests_running")


def test_a_tenant_finds_no_prompt_of_another_one_in_the_cache(
    demo: ServedModel, fleet: ModelFleet
) -> None:
    """It could tell from the time of its answers what others have sent."""
    gateway = fleet.stack.gateway(api_keys="a:key-a,b:key-b")
    body = {"model": demo.name, "prompt": list(range(20, 420)), "max_tokens": 1}

    def counted(what: str) -> float:
        return demo.worker.metric(f"vllm:prefix_cache_{what}_total")

    def found(tenant: str) -> float:
        queries, hits = counted("queries"), counted("hits")
        key = {"authorization": f"Bearer key-{tenant}"}
        answer = http.post(f"{gateway.url}{COMPLETIONS}", json=body, headers=key, timeout=120)
        assert answer.status_code == 200, answer.text
        wait_for(lambda: counted("queries") > queries, "the engine has counted it")
        return counted("hits") - hits

    counts = [found(tenant) for tenant in ("a", "a", "b", "b", "a")]
    assert [count > 0 for count in counts] == [False, True, False, True, True], counts
