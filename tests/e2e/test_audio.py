"""Speech to text through the unmodified OpenAI SDK: simulated workers, real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.e2e.processes import Process, Stack
from tests.redis_server import RedisServer
from tests.waiting import wait_for

MODEL = "simulated"
AUDIO = bytes(range(256)) * 500


@pytest.fixture(scope="module")
def gateway(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Process]:
    with redis_server.client() as client:
        client.flushall()
    stack = Stack(redis_server.url, tmp_path_factory.mktemp("audio"))
    stack.worker(sim_step_ms=2, sim_step_us_per_seq=0)
    yield stack.gateway(max_upload_bytes=1 << 20, max_body_bytes=4096)
    stack.close()


@pytest.fixture
def client(gateway: Process) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def transcribe(client: OpenAI, **fields: Any) -> Any:
    file = ("speech.wav", AUDIO, "audio/wav")
    return client.audio.transcriptions.create(**{"model": MODEL, "file": file} | fields)


def test_a_transcription(client: OpenAI) -> None:
    answer = transcribe(client, language="en", prompt="names: Flotilla", temperature=0)
    assert answer.text.startswith("[simulated]")
    assert answer.usage.seconds == 4
    assert transcribe(client).text == answer.text
    other = transcribe(client, file=("other.wav", b"x" + AUDIO, "audio/wav"))
    assert other.text != answer.text


def test_the_verbose_format(client: OpenAI) -> None:
    answer = transcribe(
        client, response_format="verbose_json", timestamp_granularities=["word", "segment"]
    )
    assert answer.text == transcribe(client).text
    assert answer.segments[0].end == answer.duration == 4.0


def test_a_translation(gateway: Process) -> None:
    """Without the SDK, in which it is deprecated."""
    url, files = f"{gateway.url}/v1/audio/translations", {"file": ("a.wav", AUDIO)}
    answer = httpx.post(url, data={"model": MODEL}, files=files, timeout=30)
    assert list(answer.json()) == ["text"]
    assert answer.json()["text"].startswith("[simulated]")


def test_a_streamed_transcription(gateway: Process, client: OpenAI) -> None:
    form = {"model": MODEL, "stream": "true", "stream_include_usage": "true"}
    url = f"{gateway.url}/v1/audio/transcriptions"
    answer = httpx.post(url, data=form, files={"file": ("a.wav", AUDIO)}, timeout=30)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, done = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert done == "[DONE]"
    events = [httpx.Response(200, content=chunk).json() for chunk in chunks]
    text = "".join(c["delta"]["content"] for event in events for c in event["choices"])
    assert text == transcribe(client).text
    assert {event["object"] for event in events} == {"transcription.chunk"}
    assert events[-1]["usage"]["completion_tokens"] > 5
    job_id = answer.headers["x-flotilla-job-id"]
    rest = httpx.get(f"{gateway.url}/jobs/{job_id}/stream", params={"after": 2}).text
    assert answer.text.endswith(rest)
    assert rest


def test_vllms_errors_come_back(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="response_format"):
        transcribe(client, response_format="srt")
    with pytest.raises(openai.NotFoundError) as unknown:
        transcribe(client, model="nope")
    assert unknown.value.code == "model_not_found"


def test_forms_that_the_gateway_refuses(gateway: Process) -> None:
    url = f"{gateway.url}/v1/audio/transcriptions"
    assert httpx.post(url, json={"model": MODEL}).status_code == 415
    assert httpx.post(url, data={"model": MODEL}).status_code == 415
    large = httpx.post(url, files={"file": ("a.wav", b"a" * (2 << 20))})
    assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
    wrong = httpx.post(url, data={"stream": "maybe"}, files={"file": ("a.wav", AUDIO)})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "stream")
    chat = httpx.post(
        f"{gateway.url}/v1/chat/completions", files={"file": ("a.wav", AUDIO)}, data={"model": "x"}
    )
    assert chat.status_code == 415


def test_a_form_can_be_sent_again_with_the_same_idempotency_key(gateway: Process) -> None:
    """Each sending has another boundary."""
    url = f"{gateway.url}/v1/audio/transcriptions"
    answers = [
        httpx.post(
            url,
            data={"model": MODEL},
            files={"file": ("a.wav", AUDIO)},
            headers={"idempotency-key": "speech-1"},
        )
        for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[1].headers["idempotent-replayed"] == "true"
    other = httpx.post(
        url,
        data={"model": MODEL},
        files={"file": ("a.wav", AUDIO + b"!")},
        headers={"idempotency-key": "speech-1"},
    )
    assert other.status_code == 422


def test_post_jobs_takes_no_forms(gateway: Process) -> None:
    body = {"endpoint": "/v1/audio/transcriptions", "body": {"model": MODEL}}
    answer = httpx.post(f"{gateway.url}/jobs", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "endpoint")


@pytest.fixture
def own_stack(own_redis: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    """Without the worker of the other tests."""
    stack = Stack(own_redis.url, tmp_path)
    yield stack
    stack.close()


def test_a_transcription_is_continued_by_another_worker(own_stack: Stack) -> None:
    gateway = own_stack.gateway()
    victim = own_stack.worker(sim_step_ms=60, sim_step_us_per_seq=0)
    url, form = f"{gateway.url}/v1/audio/transcriptions", {"model": MODEL, "stream": "true"}
    files = {"file": ("a.wav", AUDIO)}
    with httpx.stream("POST", url, data=form, files=files, timeout=60) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        begun = [next(lines) for _ in range(4)]
        victim.kill()
        survivor = own_stack.worker(sim_step_ms=2, sim_step_us_per_seq=0)
        whole = [*begun, *lines]
    assert whole[-1] == "data: [DONE]"
    again = httpx.post(url, data=form, files=files, timeout=30)
    expected = [line for line in again.text.splitlines() if line.startswith("data: ")]
    assert len(whole) == len(expected)
    wait_for(
        lambda: survivor.metric("flotilla_jobs_continued_total", how="prefill") == 1,
        "it was continued",
    )
