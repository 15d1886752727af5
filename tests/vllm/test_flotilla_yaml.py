"""One flotilla.yaml with real vLLM: two models with two names each, two versions at 90 to 10, and
an adapter that is loaded at run time on two workers.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.models.adapter import make_adapter
from tests.harness.up import REAL, Up

pytestmark = pytest.mark.vllm

LOADED_S = 900.0
REQUESTS = 200
FILE = """\
default_model: chat
pools:
  chat-1: &chat
    served_names: [chat, assistant]
    version: 1
    weight: 90
    workers: 2
    engine_args: &args {dtype: float32, max_num_seqs: 16, enable_lora: true, max_lora_rank: 8}
    sampling: {temperature: 0}
  chat-2:
    <<: *chat
    version: 2
    weight: 10
    workers: 1
    sampling: {temperature: 0, max_tokens: 12}
  embed:
    model: EMBEDDER
    served_names: [embed, vectors]
    engine_args: --runner pooling --convert embed --dtype float32 --enforce-eager --max-num-seqs 16
"""


@pytest.fixture(scope="module")
def up(models_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    text = FILE.replace("EMBEDDER", str(models_folder / "embedder"))
    (folder / "flotilla.yaml").write_text(text)
    one = Up(
        folder,
        command=REAL,
        FLOTILLA_ENGINE="vllm",
        FLOTILLA_LEASE_S="15",
        VLLM_CPU_KVCACHE_SPACE="1",
        HF_HUB_OFFLINE="1",
    )
    try:
        yield one.wait_until_ready(LOADED_S)
        one.process.send_signal(signal.SIGINT)
        one.process.wait(120)
    finally:
        one.kill()


@pytest.fixture(scope="module")
def api(up: Up) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{up.port}", timeout=120) as api:
        yield api


def complete(api: httpx.Client, model: str | None, **more: Any) -> httpx.Response:
    body = {"prompt": "What is Flotilla?", "max_tokens": 8} | ({"model": model} if model else {})
    answer = api.post("/v1/completions", json=body | more)
    assert answer.status_code == 200, answer.text
    return answer


def pool_of(api: httpx.Client, answer: httpx.Response) -> str:
    job: dict[str, Any] = api.get(f"/jobs/{answer.headers['x-flotilla-job-id']}").json()
    return str(job["pool"])


def text_of(answer: httpx.Response) -> str:
    return str(answer.json()["choices"][0]["text"])


def test_every_name_of_a_model_gets_the_same_answer(api: httpx.Client) -> None:
    names = ("chat", "assistant", "chat:1", "chat:2", "assistant:1", "assistant:2", None)
    answers = [complete(api, name) for name in names]
    assert len({text_of(answer) for answer in answers}) == 1
    assert {answer.json()["model"] for answer in answers} == {"chat"}, "the first name, as in vLLM"
    assert [pool_of(api, answer) for answer in answers[2:6]] == ["chat-1", "chat-2"] * 2
    vectors = [
        api.post("/v1/embeddings", json={"model": name, "input": "a queue"}).json()
        for name in ("embed", "vectors")
    ]
    assert vectors[0]["data"] == vectors[1]["data"]
    listed = {model["id"]: model for model in api.get("/v1/models").json()["data"]}
    assert set(names) - {None} | {"embed", "vectors"} == set(listed)
    assert listed["chat"]["max_model_len"] == 4096
    unknown = api.post("/v1/completions", json={"model": "chatt", "prompt": "x"})
    assert unknown.status_code == 404
    assert "nearest names are: chat" in unknown.json()["error"]["message"]


def test_a_tenth_of_the_requests_goes_to_the_new_version(api: httpx.Client) -> None:
    names = ("chat", "assistant")
    answers = [complete(api, names[n % 2], max_tokens=1) for n in range(REQUESTS)]
    pools = Counter(pool_of(api, answer) for answer in answers)
    assert set(pools) == {"chat-1", "chat-2"}
    # 20 are expected; fewer than 3 or more than 45 come less than once in a hundred thousand.
    assert 3 <= pools["chat-2"] <= 45, pools


def test_a_pool_has_sampling_parameters_of_its_own(api: httpx.Client) -> None:
    def tokens(model: str) -> int:
        body = {"model": model, "messages": [{"role": "user", "content": "Tell me a story."}]}
        answer = api.post("/v1/chat/completions", json=body).json()
        return int(answer["usage"]["completion_tokens"])

    assert tokens("chat:2") == 12
    assert tokens("chat:1") > 12


def test_an_adapter_is_loaded_on_all_workers_of_a_pool(api: httpx.Client, tmp_path: Path) -> None:
    path = make_adapter(tmp_path / "sql", seed=0)
    loaded = api.post(
        "/admin/pools/chat-1/load_lora_adapter", json={"lora_name": "sql", "lora_path": path}
    )
    assert loaded.status_code == 200, loaded.text
    assert len(loaded.json()["workers"]) == 2, loaded.text
    answers = [complete(api, "sql") for _ in range(8)]
    assert len({text_of(answer) for answer in answers}) == 1
    assert text_of(answers[0]) != text_of(complete(api, "chat:1"))
    assert {answer.json()["model"] for answer in answers} == {"sql"}
    jobs = [api.get(f"/jobs/{answer.headers['x-flotilla-job-id']}").json() for answer in answers]
    assert {job["pool"].partition("+")[0] for job in jobs} == {"chat-1"}
    listed = {model["id"]: model for model in api.get("/v1/models").json()["data"]}
    assert listed["sql"]["parent"] == "chat"
