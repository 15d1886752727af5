"""Speech to text on real vLLM, with a small Whisper model that is made for the test."""

from __future__ import annotations

import io
import json
import math
import struct
import wave
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.harness.client import http
from tests.harness.models import CHUNK_S
from tests.harness.waiting import wait_for
from tests.vllm.conftest import ENGINE_ARGS, ModelFleet, ServedModel

pytestmark = pytest.mark.vllm

MODEL = "whisper"
LOADING_S = 600.0
URL = "/v1/audio/transcriptions"


def speech(seconds: float, tone: float = 440.0, rate: int = 16_000, times: int = 1) -> bytes:
    """A WAV file with a tone, repeated so many times."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        samples = [
            int(12_000 * math.sin(2 * math.pi * tone * n / rate))
            for n in range(int(seconds * rate))
        ]
        sound.writeframes(struct.pack(f"<{len(samples)}h", *samples) * times)
    return file.getvalue()


SHORT, LONG = speech(1.0), speech(2.6 * CHUNK_S, 300.0)


@pytest.fixture
def client(whisper: ServedModel) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{whisper.gateway_url}/v1", api_key="any", max_retries=0) as client:
        yield client


def transcribe(client: OpenAI, audio: bytes = SHORT, **fields: Any) -> Any:
    file = ("speech.wav", audio, "audio/wav")
    given = {"model": MODEL, "file": file, "language": "en", "extra_body": {}} | fields
    given["extra_body"] = {"max_completion_tokens": 24, **given["extra_body"]}
    return client.audio.transcriptions.create(**given)


def streamed(
    whisper: ServedModel, audio: bytes = SHORT, **fields: str | None
) -> tuple[str, list[Any]]:
    """The text of a streamed transcription, and its chunks."""
    form = {"model": MODEL, "language": "en", "stream": "true", "max_completion_tokens": "24"}
    answer = http.post(
        f"{whisper.gateway_url}{URL}",
        data={name: value for name, value in (form | fields).items() if value is not None},
        files={"file": ("a.wav", audio)},
        timeout=120,
    )
    assert answer.status_code == 200, answer.text
    *chunks, done = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert done == "[DONE]"
    events = [json.loads(chunk) for chunk in chunks]
    return "".join(c["delta"]["content"] for e in events for c in e["choices"]), events


def test_a_transcription(client: OpenAI) -> None:
    answer = transcribe(client)
    assert len(answer.text) > 10
    assert answer.usage.seconds == 1
    assert transcribe(client).text == answer.text
    assert transcribe(client, speech(1.0, 1200.0)).text != answer.text


def test_a_stream_adds_up_to_the_whole(client: OpenAI, whisper: ServedModel) -> None:
    text, events = streamed(whisper, stream_include_usage="true")
    assert text == transcribe(client).text
    assert events[0]["object"] == "transcription.chunk"
    assert events[-1]["usage"]["completion_tokens"] == 24


def test_audio_in_several_parts(client: OpenAI, whisper: ServedModel) -> None:
    whole = transcribe(client, LONG)
    assert whole.text.count(" ") >= 2
    assert streamed(whisper, LONG)[0].split() == whole.text.split()


def test_the_language_is_detected(client: OpenAI, whisper: ServedModel) -> None:
    assert transcribe(client, language=openai.omit).text
    assert streamed(whisper, language=None)[0]


def test_the_verbose_format(client: OpenAI) -> None:
    answer = transcribe(client, response_format="verbose_json")
    assert (answer.duration, answer.language) == (1.0, "en")


def test_a_translation(whisper: ServedModel) -> None:
    """Without the SDK, in which it is deprecated."""
    url, files = f"{whisper.gateway_url}/v1/audio/translations", {"file": ("a.wav", SHORT)}
    answer = http.post(url, data={"model": MODEL, "language": "fr"}, files=files, timeout=60)
    assert answer.json()["text"], answer.text


def test_other_sample_rates(whisper: ServedModel) -> None:
    for rate in (8_000, 44_100):
        answer = http.post(
            f"{whisper.gateway_url}{URL}",
            data={"model": MODEL, "language": "en", "max_completion_tokens": "8"},
            files={"file": ("a.wav", speech(1.0, rate=rate))},
            timeout=60,
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["text"]


@pytest.mark.parametrize(
    ("form", "files", "status"),
    [
        ({"model": MODEL}, {"file": ("a.wav", b"no audio")}, 400),
        ({"model": MODEL, "response_format": "srt"}, {"file": ("a.wav", SHORT)}, 400),
        ({"model": MODEL, "language": "xx"}, {"file": ("a.wav", SHORT)}, 400),
        ({"model": MODEL, "temperature": "hot"}, {"file": ("a.wav", SHORT)}, 400),
        ({"model": MODEL}, {"other": ("a.wav", SHORT)}, 400),
        ({"model": "nope"}, {"file": ("a.wav", SHORT)}, 404),
    ],
)
def test_bad_requests(
    whisper: ServedModel, form: dict[str, str], files: dict[str, Any], status: int
) -> None:
    answer = http.post(f"{whisper.gateway_url}{URL}", data=form, files=files, timeout=60)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]


def test_a_transcription_is_continued_when_its_worker_is_killed(
    whisper: ServedModel, fleet: ModelFleet
) -> None:
    settings = {
        "engine": "vllm",
        "model": str(fleet.folder / "whisper"),
        "served_model_name": "whisper-b",
        "engine_args": ENGINE_ARGS,
    }
    long = speech(CHUNK_S, 500.0, times=60)
    expected, _ = streamed(whisper, long, max_completion_tokens="60")
    victim = fleet.stack.worker(wait=False, **settings)
    wait_for(victim.ready, "the worker is ready", LOADING_S)
    form = {"model": "whisper-b", "language": "en", "stream": "true", "max_completion_tokens": "60"}
    url, files = f"{whisper.gateway_url}{URL}", {"file": ("a.wav", long)}
    with http.stream("POST", url, data=form, files=files, timeout=LOADING_S) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        begun = [next(lines) for _ in range(5)]
        victim.kill()
        fleet.stack.worker(wait=False, **settings)
        whole = [*begun, *lines]
    assert whole[-1] == "data: [DONE]"
    chunks = [json.loads(line[6:]) for line in whole[:-1]]
    assert "".join(c["choices"][0]["delta"]["content"] for c in chunks) == expected
    job = http.get(f"{whisper.gateway_url}/jobs/{answer.headers['x-flotilla-job-id']}").json()
    assert [attempt["outcome"] for attempt in job["attempts"]] == ["worker_lost", "completed"]
