"""Forms with audio at the gateway, with the unmodified OpenAI SDK; the answers are canned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.harness.client import CHAT, MODEL, http
from tests.harness.fleet import Process, Stack
from tests.harness.waiting import wait_for

AUDIO = bytes(range(256)) * 500


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    module_stack.worker(sim_step_ms=2, sim_step_us_per_seq=0)
    return module_stack.gateway(max_upload_bytes=1 << 20, max_body_bytes=4096)


@pytest.fixture
def client(gateway: Process) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def transcribe(client: OpenAI, **fields: Any) -> Any:
    file = ("speech.wav", AUDIO, "audio/wav")
    return client.audio.transcriptions.create(**{"model": MODEL, "file": file} | fields)


def test_a_transcription(client: OpenAI) -> None:
    fields = {"language": "en", "prompt": "names: Flotilla", "temperature": 0}
    assert transcribe(client, **fields).text == "[simulated]"
    with pytest.raises(openai.NotFoundError) as unknown:
        transcribe(client, model="nope")
    assert unknown.value.code == "model_not_found"


def test_forms_that_the_gateway_refuses(gateway: Process) -> None:
    url = f"{gateway.url}/v1/audio/transcriptions"
    assert http.post(url, json={"model": MODEL}).status_code == 415
    assert http.post(url, data={"model": MODEL}).status_code == 415
    large = http.post(url, files={"file": ("a.wav", b"a" * (2 << 20))})
    assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
    wrong = http.post(url, data={"stream": "maybe"}, files={"file": ("a.wav", AUDIO)})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "stream")
    chat = http.post(gateway.url + CHAT, files={"file": ("a.wav", AUDIO)}, data={"model": "x"})
    assert chat.status_code == 415


def test_a_form_can_be_sent_again_with_the_same_idempotency_key(gateway: Process) -> None:
    """Each sending has another boundary."""
    url = f"{gateway.url}/v1/audio/transcriptions"
    answers = [
        http.post(
            url,
            data={"model": MODEL},
            files={"file": ("a.wav", AUDIO)},
            headers={"idempotency-key": "speech-1"},
        )
        for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[1].headers["idempotent-replayed"] == "true"
    other = http.post(
        url,
        data={"model": MODEL},
        files={"file": ("a.wav", AUDIO + b"!")},
        headers={"idempotency-key": "speech-1"},
    )
    assert other.status_code == 422


ENDPOINT = "/v1/audio/transcriptions"


def submit(gateway: Process, audio: bytes = AUDIO, endpoint: str = ENDPOINT, **headers: str) -> Any:
    return http.post(
        f"{gateway.url}/jobs",
        params={"endpoint": endpoint},
        data={"model": MODEL},
        files={"file": ("a.wav", audio)},
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


def test_a_form_becomes_a_job(gateway: Process) -> None:
    answer = submit(gateway, x_flotilla_run_deadline="50")
    assert answer.status_code == 202, answer.text
    job = answer.json()
    assert (job["endpoint"], answer.headers["location"]) == (ENDPOINT, f"/jobs/{job['id']}")
    url = f"{gateway.url}/jobs/{job['id']}"
    wait_for(lambda: http.get(url).json()["state"] == "completed", "it completes")
    direct = http.post(
        gateway.url + ENDPOINT, data={"model": MODEL}, files={"file": ("a.wav", AUDIO)}
    )
    assert http.get(f"{url}/result").json() == direct.json()


def test_a_form_of_a_job_with_an_idempotency_key(gateway: Process) -> None:
    first, second = (submit(gateway, idempotency_key="speech-2") for _ in range(2))
    assert first.json()["id"] == second.json()["id"]
    other = submit(gateway, endpoint="/v1/audio/translations", idempotency_key="speech-2")
    assert other.status_code == 422, "the same form for another endpoint"


def test_forms_that_are_no_job(gateway: Process) -> None:
    in_body = {"endpoint": ENDPOINT, "body": {"model": MODEL}}
    in_query = {"params": {"endpoint": ENDPOINT}, "json": {"model": MODEL}}
    form: dict[str, Any] = {"data": {"model": MODEL}, "files": {"file": ("a.wav", AUDIO)}}
    url = f"{gateway.url}/jobs"
    for endpoint in (CHAT, "/nowhere"):
        answer = submit(gateway, endpoint=endpoint)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "endpoint")
    answer = http.post(url, json=in_body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "endpoint")
    assert http.post(url, **in_query).status_code == 415
    assert http.post(url, **form).status_code == 415
    assert submit(gateway, b"a" * (2 << 20)).json()["error"]["code"] == "body_too_large"
