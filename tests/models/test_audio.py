"""Speech to text on real vLLM, with a small Whisper model that is made for the test."""

from __future__ import annotations

import io
import json
import math
import struct
import subprocess
import sys
import wave
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.e2e.processes import Process, Stack
from tests.models.whisper import CHUNK_S
from tests.redis_server import RedisServer
from tests.waiting import wait_for

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

MODEL = "whisper"
LOADING_S = 300.0
URL = "/v1/audio/transcriptions"


def speech(seconds: float, tone: float = 440.0, rate: int = 16_000) -> bytes:
    """A WAV file with a tone."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        for n in range(int(seconds * rate)):
            sample = int(12_000 * math.sin(2 * math.pi * tone * n / rate))
            sound.writeframesraw(struct.pack("<h", sample))
    return file.getvalue()


SHORT, LONG = speech(1.0), speech(2.6 * CHUNK_S, 300.0)


@pytest.fixture(scope="module")
def stack(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with redis_server.client() as client:
        client.flushall()
    stack = Stack(redis_server.url, tmp_path_factory.mktemp("audio"))
    yield stack
    stack.close()


@pytest.fixture(scope="module")
def settings(stack: Stack) -> dict[str, Any]:
    """Those of a worker with the model."""
    folder = stack.folder / "model"
    subprocess.run([sys.executable, "-m", "tests.models.whisper", str(folder)], check=True)
    arguments = "--enforce-eager --dtype float32 --max-num-seqs 8"
    return {
        "engine": "vllm",
        "model": str(folder),
        "served_model_name": MODEL,
        "engine_args": arguments,
    }


@pytest.fixture(scope="module")
def worker(stack: Stack, settings: dict[str, Any]) -> Process:
    worker = stack.worker(wait=False, **settings)
    wait_for(worker.ready, "the worker is ready", LOADING_S)
    return worker


@pytest.fixture(scope="module")
def gateway(stack: Stack, worker: Process) -> Process:
    return stack.gateway()


@pytest.fixture
def client(gateway: Process) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def transcribe(client: OpenAI, audio: bytes = SHORT, **fields: Any) -> Any:
    file = ("speech.wav", audio, "audio/wav")
    given = {"model": MODEL, "file": file, "language": "en", "extra_body": {}} | fields
    given["extra_body"] = {"max_completion_tokens": 24, **given["extra_body"]}
    return client.audio.transcriptions.create(**given)


def streamed(gateway: Process, audio: bytes = SHORT, **fields: str) -> tuple[str, list[Any]]:
    """The text of a streamed transcription, and its chunks."""
    form = {"model": MODEL, "language": "en", "stream": "true", "max_completion_tokens": "24"}
    answer = httpx.post(
        f"{gateway.url}{URL}", data=form | fields, files={"file": ("a.wav", audio)}, timeout=120
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


def test_a_stream_adds_up_to_the_whole(client: OpenAI, gateway: Process) -> None:
    text, events = streamed(gateway, stream_include_usage="true")
    assert text == transcribe(client).text
    assert events[0]["object"] == "transcription.chunk"
    assert events[-1]["usage"]["completion_tokens"] == 24


def test_audio_in_several_parts(client: OpenAI, gateway: Process) -> None:
    whole = transcribe(client, LONG)
    assert whole.text.count(" ") >= 2
    assert streamed(gateway, LONG)[0].split() == whole.text.split()


def test_the_language_is_detected(client: OpenAI, gateway: Process) -> None:
    assert transcribe(client, language=openai.omit).text
    assert streamed(gateway, language="")[0]


def test_the_verbose_format(client: OpenAI) -> None:
    answer = transcribe(client, response_format="verbose_json")
    assert (answer.duration, answer.language) == (1.0, "en")


def test_a_translation(client: OpenAI) -> None:
    answer = client.audio.translations.create(
        model=MODEL, file=("a.wav", SHORT), extra_body={"language": "fr"}
    )
    assert answer.text


def test_other_sample_rates_and_the_default_model(gateway: Process) -> None:
    for rate in (8_000, 44_100):
        answer = httpx.post(
            f"{gateway.url}{URL}",
            data={"language": "en", "max_completion_tokens": "8"},
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
    gateway: Process, form: dict[str, str], files: dict[str, Any], status: int
) -> None:
    answer = httpx.post(f"{gateway.url}{URL}", data=form, files=files, timeout=60)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]


def test_a_transcription_is_continued_when_its_worker_is_killed(
    stack: Stack, settings: dict[str, Any], gateway: Process, worker: Process
) -> None:
    long = speech(8 * CHUNK_S, 500.0)
    form = {"model": MODEL, "language": "en", "stream": "true"}
    expected, _ = streamed(gateway, long, max_completion_tokens="60")
    successor = stack.worker(wait=False, **settings)
    wait_for(successor.ready, "the worker is ready", LOADING_S)
    worker.stop(19)  # so that the successor gets the job
    with httpx.stream(
        "POST",
        f"{gateway.url}{URL}",
        data=form | {"max_completion_tokens": "60"},
        files={"file": ("a.wav", long)},
        timeout=240,
    ) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        begun = [next(lines) for _ in range(5)]
        worker.stop(18)
        successor.kill()
        whole = [*begun, *lines]
    assert whole[-1] == "data: [DONE]"
    chunks = [json.loads(line[6:]) for line in whole[:-1]]
    assert "".join(c["choices"][0]["delta"]["content"] for c in chunks) == expected
