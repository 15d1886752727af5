"""`flotilla up` with a flotilla.yaml: several pools, versions and aliases behind one gateway."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.up import REAL, Up, children
from tests.harness.waiting import wait_for

FILE = """\
default_model: embed
pools:
  chat-1: {served_names: [chat, assistant], version: 1, weight: 3, max_queue_depth: 5}
  chat-2: {served_names: [chat, assistant], version: 2, weight: 1}
  embed: {model: org/embed, served_names: [embed]}
  idle: {model: org/idle, workers: 0, queue_deadline_s: 3600}
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    (folder / "flotilla.yaml").write_text(FILE)
    one = Up(folder, command=REAL, FLOTILLA_SIM_STEP_MS="1")
    try:
        yield one.wait_until_ready()
        one.process.send_signal(signal.SIGINT)
        assert one.wait_for_exit() == 0
        one.wait_until_all_ended()
    finally:
        one.kill()


@pytest.fixture(scope="module")
def api(up: Up) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{up.port}", timeout=60) as api:
        yield api


def ask(api: httpx.Client, model: str | None, **headers: str) -> httpx.Response:
    body = {"prompt": "hello", "max_tokens": 1} | ({"model": model} if model else {})
    return api.post("/v1/completions", json=body, headers=headers)


def pool_of(api: httpx.Client, answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    job: dict[str, Any] = api.get(f"/jobs/{answer.headers['x-flotilla-job-id']}").json()
    return str(job["pool"])


def test_every_name_leads_to_its_pool(up: Up, api: httpx.Client) -> None:
    text = up.text()
    assert "pool     chat-1  chat, assistant; workers: 1" in text
    assert "worker-embed-1" in text
    listed = {model["id"] for model in api.get("/v1/models").json()["data"]}
    names = {"chat", "chat:1", "chat:2", "assistant", "assistant:1", "assistant:2"}
    assert listed == names | {"embed", "org/idle"}
    assert pool_of(api, ask(api, "embed")) == "embed"
    assert pool_of(api, ask(api, "assistant:2")) == "chat-2"
    assert pool_of(api, ask(api, "chat", **{"x-flotilla-model-version": "1"})) == "chat-1"
    assert pool_of(api, ask(api, None)) == "embed"


def test_a_name_without_a_version_goes_to_each_by_weight(api: httpx.Client) -> None:
    answers = [ask(api, name) for name in ("chat", "assistant") for _ in range(60)]
    pools = Counter(pool_of(api, answer) for answer in answers)
    assert set(pools) == {"chat-1", "chat-2"}
    assert 60 <= pools["chat-1"] <= 115, "90 are expected; a wrong one comes once in a million"


@pytest.mark.parametrize(
    ("model", "version", "words"),
    [
        ("asistant", "", "nearest names are: assistant"),
        ("chat", "3", "has no version '3'; versions: 1, 2"),
    ],
)
def test_an_unknown_name_gets_the_nearest_ones(
    api: httpx.Client, model: str, version: str, words: str
) -> None:
    answer = ask(api, model, **{"x-flotilla-model-version": version})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert words in answer.json()["error"]["message"]


def test_a_job_for_a_pool_without_a_worker_waits_and_its_client_is_told(
    api: httpx.Client,
) -> None:
    body = {"model": "org/idle", "prompt": "hello"}
    job = api.post("/jobs", json={"endpoint": "/v1/completions", "body": body}).json()
    assert (job["state"], job["wait_reason"]) == ("queued", "no worker runs")
    assert job["queue_deadline_s"] == 3600, "the pool's"
    assert job["deadline_at"] is not None


def test_a_worker_that_dies_comes_back_to_its_pool(up: Up, api: httpx.Client) -> None:
    (pid,) = up.wait_for_output(r"worker-embed-1 +\| .*", 1) and [
        child
        for child in children(up.process.pid)
        if b"FLOTILLA_POOL=embed" in Path(f"/proc/{child}/environ").read_bytes()
    ]
    os.kill(pid, signal.SIGKILL)
    up.wait_for_output("worker-embed-1 .*is ready again")
    wait_for(lambda: pool_of(api, ask(api, "embed")) == "embed", "it serves again")
