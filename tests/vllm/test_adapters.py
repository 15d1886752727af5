"""LoRA adapters and the other operator calls on real vLLM: workers that share a pool."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.fleet import Process, Stack
from tests.harness.models.adapter import make_adapter
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for

LOADED_S = 600.0
BASE = "flotilla-demo"
ENGINE_ARGS = (
    "--dtype float32 --kv-cache-memory-bytes 256M --max-num-seqs 8 "
    "--enable-lora --max-loras 1 --max-cpu-loras 4 --max-lora-rank 8"
)
PROMPT = "What is Flotilla?"
HOT_JOBS = 24
"""So many of the adapter's jobs always wait, however fast the machine is."""


class Fleet:
    """A gateway, and workers with real vLLM that can run one adapter at a time."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.gateway = stack.gateway(lease_s=15)
        self.first = self.start_worker("w-1")
        self.api = httpx.Client(base_url=self.gateway.url, timeout=LOADED_S)

    def start_worker(self, name: str) -> Process:
        worker = self.stack.worker(
            wait=False, engine="vllm", engine_args=ENGINE_ARGS, worker_id=name, lease_s=15
        )
        wait_for(worker.ready, f"{name} is ready", LOADED_S)
        return worker

    def operate(self, action: str, **options: Any) -> httpx.Response:
        return self.api.post(f"/admin/pools/{BASE}/{action}", json=options)

    def ask(self, model: str, **more: Any) -> httpx.Response:
        return self.api.post("/v1/completions", json=request(model, **more))

    def text(self, model: str) -> str:
        answer = self.ask(model)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == model
        text: str = answer.json()["choices"][0]["text"]
        return text


def request(model: str, **more: Any) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": PROMPT,
        "max_tokens": 24,
        "temperature": 0,
        "ignore_eos": True,
    } | more


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("adapters")
    return {name: make_adapter(folder / name, seed) for seed, name in enumerate(("hot", "cold"))}


@pytest.fixture(scope="module")
def fleet(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with redis_server.client() as client:
        client.flushall()
    stack = Stack(redis_server.url, tmp_path_factory.mktemp("fleet"))
    try:
        started = Fleet(stack)
        with started.api:
            yield started
    finally:
        stack.close()


@pytest.fixture(scope="module")
def loaded(fleet: Fleet, paths: dict[str, str]) -> Fleet:
    """The fleet with both adapters, loaded at run time."""
    for name, path in paths.items():
        answer = fleet.operate("load_lora_adapter", lora_name=name, lora_path=path)
        assert answer.status_code == 200, answer.text
    return fleet


@pytest.mark.vllm
def test_each_adapter_has_answers_of_its_own(loaded: Fleet) -> None:
    texts = {name: loaded.text(name) for name in (BASE, "hot", "cold")}
    assert len(set(texts.values())) == 3
    assert {name: loaded.text(name) for name in texts} == texts
    models = {model["id"]: model for model in loaded.api.get("/v1/models").json()["data"]}
    assert models["hot"]["parent"] == BASE
    assert models["hot"]["max_model_len"] == models[BASE]["max_model_len"] == 4096
    chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4}
    streamed = loaded.api.post(
        "/v1/chat/completions", json={"model": "cold", "stream": True} | chat
    )
    assert streamed.status_code == 200
    assert '"model":"cold"' in streamed.text
    assert streamed.text.endswith("data: [DONE]\n\n")


@pytest.mark.vllm
def test_an_adapter_with_many_jobs_does_not_keep_others_waiting(loaded: Fleet) -> None:
    lengths = itertools.cycle(range(60, 200, 9))  # so they don't all end in one step

    def submit(model: str) -> str:
        body = request(model, max_tokens=next(lengths))
        job = loaded.api.post("/jobs", json={"endpoint": "/v1/completions", "body": body})
        return str(job.json()["id"])

    def job(job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = loaded.api.get(f"/jobs/{job_id}").json()
        return found

    def is_over(job_id: str) -> bool:
        return bool(job(job_id)["finished_at"])

    def hot_jobs_waiting() -> int:
        params = {"filter": "state:queued model:hot", "limit": 100}
        return len(loaded.api.get("/jobs", params=params).json()["data"])

    def others_have_ended() -> bool:
        hot.extend(submit("hot") for _ in range(hot_jobs_waiting(), HOT_JOBS))
        return all(map(is_over, others))

    assert loaded.operate("pause").status_code == 200
    hot = [submit("hot") for _ in range(HOT_JOBS)]
    assert loaded.operate("resume").status_code == 200
    wait_for(lambda: job(hot[0])["started_at"], "the adapter runs", LOADED_S)
    others = [submit("cold"), submit(BASE)]
    wait_for(others_have_ended, "the jobs of others have ended", LOADED_S)
    wait_for(lambda: all(map(is_over, hot)), "the adapter's jobs have ended", LOADED_S)
    ended = [job(job_id) for job_id in others]
    last_start = job(hot[-1])["started_at"]
    assert [each["state"] for each in ended] == ["completed"] * 2
    assert all(each["started_at"] < last_start for each in ended)


@pytest.mark.vllm
def test_a_wrong_adapter_is_refused(loaded: Fleet, tmp_path: Any) -> None:
    missing = loaded.operate("load_lora_adapter", lora_name="x", lora_path=str(tmp_path / "no"))
    assert missing.status_code in {400, 404}, missing.text
    (tmp_path / "empty").mkdir()
    empty = loaded.operate("load_lora_adapter", lora_name="x", lora_path=str(tmp_path / "empty"))
    assert empty.status_code >= 400
    again = loaded.operate("load_lora_adapter", lora_name="hot", lora_path="/other")
    assert again.status_code == 400
    taken = loaded.operate("load_lora_adapter", lora_name=BASE, lora_path="/other")
    assert taken.status_code == 400
    assert loaded.ask("x").status_code == 404
    assert loaded.first.metric("flotilla_worker_adapters") == 2


@pytest.mark.vllm
def test_the_other_operator_calls(loaded: Fleet) -> None:
    before = loaded.text("hot")
    assert loaded.api.post("/reset_prefix_cache").json() == {"success": True}
    for path in ("/reset_mm_cache", "/reset_encoder_cache"):
        assert loaded.api.post(path).status_code == 200
    info = loaded.api.get("/server_info?config_format=json")
    assert info.status_code == 200
    assert set(info.json()) == {"vllm_config", "vllm_env", "system_env"}
    profile = loaded.operate("start_profile")
    assert profile.status_code == 501
    assert "--profiler-config" in profile.json()["error"]["message"]
    slept = loaded.operate("sleep", level=1)
    assert slept.status_code == 200, slept.text
    assert loaded.api.get("/is_sleeping").json() == {"is_sleeping": True}
    body = {"endpoint": "/v1/completions", "body": request("hot")}
    job = loaded.api.post("/jobs", json=body).json()
    assert job["state"] == "queued"
    assert loaded.operate("wake_up").status_code == 200
    done = loaded.api.get(f"/jobs/{job['id']}?wait=60").json()
    assert done["state"] == "completed"
    assert done["result"]["choices"][0]["text"] == before


@pytest.mark.vllm
def test_a_worker_that_starts_later_takes_over_in_the_middle_of_an_answer(loaded: Fleet) -> None:
    expected = loaded.ask("cold", max_tokens=400).json()["choices"][0]["text"]
    body = request("cold", max_tokens=400, stream=True)
    loaded.start_worker("w-2")
    with loaded.api.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        first = next(line for line in lines if line.startswith("data: "))
        loaded.first.kill()
        events = [first, *(line for line in lines if line.startswith("data: "))]
    assert events[-1] == "data: [DONE]"
    text = "".join(_text(event) for event in events[:-1])
    assert text == expected


def _text(event: str) -> str:
    (choice,) = httpx.Response(200, text=event.removeprefix("data: ")).json()["choices"]
    return str(choice["text"])


@pytest.mark.vllm
def test_an_adapter_that_was_unloaded_is_unknown(loaded: Fleet) -> None:
    answer = loaded.operate("unload_lora_adapter", lora_name="hot")
    assert answer.status_code == 200, answer.text
    assert loaded.ask("hot").status_code == 404
    assert loaded.text("cold")
