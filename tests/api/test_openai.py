"""The unmodified OpenAI SDK against a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.harness.client import CHAT, MODEL, chat, http, job
from tests.harness.fleet import Process, Stack
from tests.harness.waiting import wait_for

MESSAGES = [{"role": "user", "content": "What is a queue?"}]


@pytest.fixture(scope="module")
def fleet(module_stack: Stack) -> tuple[Process, Process]:
    """One gateway and one worker."""
    worker = module_stack.worker(sim_step_ms=2, sim_step_us_per_seq=0)
    return module_stack.gateway(), worker


@pytest.fixture
def client(fleet: tuple[Process, Process]) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{fleet[0].url}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_plain_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=12)
    assert answer.choices[0].message.content.startswith("[simulated]")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.id.startswith("chatcmpl-job_")


def test_a_streamed_chat_adds_up_to_the_plain_one(client: OpenAI) -> None:
    plain = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=12)
    stream = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == plain.choices[0].message.content
    assert chunks[-1].usage == plain.usage
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_completions_with_several_prompts(client: OpenAI, stream: bool) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=["One", "Two"], max_tokens=6, stream=stream
    )
    if stream:
        texts = {0: "", 1: ""}
        for chunk in answer:
            for choice in chunk.choices:
                texts[choice.index] += choice.text
    else:
        texts = {choice.index: choice.text for choice in answer.choices}
    assert sorted(texts) == [0, 1]
    assert all(text.startswith("[simulated]") for text in texts.values())


def test_several_choices_and_logprobs(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, n=2, logprobs=True, top_logprobs=2, max_tokens=5
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2


async def test_many_at_once(fleet: tuple[Process, Process]) -> None:
    async with AsyncOpenAI(base_url=f"{fleet[0].url}/v1", api_key="any") as client:

        async def ask(number: int) -> str:
            stream = await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": f"question {number}"}],
                max_tokens=20,
                stream=True,
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        first = await asyncio.gather(*(ask(number) for number in range(40)))
        second = await asyncio.gather(*(ask(number) for number in range(40)))
    assert first == second
    assert len(set(first)) == 40


def test_models(client: OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == MODEL
    assert client.models.retrieve(MODEL).model_extra["flotilla"]["workers_ready"] == 1


def test_errors_are_what_the_sdk_expects(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="nope", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=0)
    assert "max_tokens" in str(refused.value)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=0, stream=True)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nope")


def test_a_client_that_disconnects_cancels_its_job(
    client: OpenAI, fleet: tuple[Process, Process]
) -> None:
    gateway, worker = fleet
    stream = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=5000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    job_id = next(iter(stream)).id.removeprefix("chatcmpl-")
    assert worker.metric("flotilla_worker_slots", use="busy") == 1
    stream.close()
    wait_for(lambda: job(gateway, job_id)["state"] == "cancelled", "the job is cancelled")
    wait_for(lambda: worker.metric("flotilla_worker_slots", use="busy") == 0, "the slot is free")
    wait_for(lambda: gateway.metric("flotilla_open_streams") == 0, "no open stream")


def test_every_answer_carries_its_ids(fleet: tuple[Process, Process]) -> None:
    body = chat(max_tokens=2)
    answer = http.post(fleet[0].url + CHAT, json=body, headers={"x-request-id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.json()["id"] == f"chatcmpl-{answer.headers['x-flotilla-job-id']}"
    missing = http.get(f"{fleet[0].url}/nothing", headers={"x-request-id": "not sound!"})
    assert missing.headers["x-request-id"].startswith("req_")
    assert missing.json()["error"]["code"] == "unknown_route"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'{"model": "simulated", "model": "other"}', 400),
        (b'{"model": "simulated", "temperature": NaN}', 400),
        (b'{"model": 5}', 400),
        (b'{"model": "simulated", "stream": "yes"}', 400),
        (b"[" * 20_000, 400),
        (b'{"model": "simulated", "x": "' + b"a" * (33 << 20) + b'"}', 413),
    ],
)
def test_bad_bodies(fleet: tuple[Process, Process], body: bytes, status: int) -> None:
    answer = http.post(
        fleet[0].url + CHAT,
        content=body,
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(("asked", "named"), [("flex", "flex"), ("auto", "default")])
def test_the_answer_names_its_service_tier(client: OpenAI, asked: str, named: str) -> None:
    def create(**fields: Any) -> Any:
        return client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=4, service_tier=asked, **fields
        )

    assert create().service_tier == named
    chunks = list(create(stream=True))
    assert len(chunks) > 4
    assert {chunk.service_tier for chunk in chunks} == {named}
    plain = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=4)
    assert plain.service_tier is None


def test_an_unknown_service_tier_is_refused(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="must be one of: auto, default, flex") as no:
        client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=4, service_tier="scale"
        )
    assert no.value.param == "service_tier"
