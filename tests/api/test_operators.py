"""Operator calls on a fleet of processes: all workers of a pool carry them out."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.client import http
from tests.harness.fleet import Process, Stack
from tests.harness.inner_settings import IMPATIENT_OF_OPERATIONS, PATIENT
from tests.harness.waiting import wait_for

TEAM = {"authorization": "Bearer s3cret"}
OPERATOR = {"authorization": "Bearer adm1n"}
SIMULATED: dict[str, Any] = {"sim_step_ms": 1, "sim_step_us_per_seq": 0, **PATIENT}
SQL = {"lora_name": "sql", "lora_path": "/adapters/sql"}


class Fleet:
    """A gateway and two workers of the pool `simulated`."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.gateway = stack.gateway(api_keys="team:s3cret", admin_keys="ops:adm1n", **PATIENT)
        self.workers = [self.worker(n) for n in range(2)]
        self.team = httpx.Client(base_url=self.gateway.url, headers=TEAM, timeout=60)
        self.operator = httpx.Client(base_url=self.gateway.url, headers=OPERATOR, timeout=60)

    def worker(self, n: int, **changes: Any) -> Process:
        return self.stack.worker(worker_id=f"w-{n}", **SIMULATED, **changes)

    def operate(self, action: str, pool: str = "simulated", **options: Any) -> httpx.Response:
        return self.operator.post(f"/admin/pools/{pool}/{action}", json=options)

    def ask(self, model: str, **more: Any) -> httpx.Response:
        body = {"model": model, "prompt": "hello", "max_tokens": 3}
        return self.team.post("/v1/completions", json=body | more)

    def models(self) -> dict[str, Any]:
        return {model["id"]: model for model in self.team.get("/v1/models").json()["data"]}

    def states(self) -> dict[str, str]:
        (pool,) = self.operator.get("/admin/pools").json()["data"]
        return {worker["id"]: worker["state"] for worker in pool["workers"]}

    def held(self) -> dict[str, float]:
        return {
            worker.url: worker.metric("flotilla_worker_adapters")
            for worker in self.workers
            if worker.popen.poll() is None
        }


@pytest.fixture(scope="module")
def fleet(module_stack: Stack) -> Iterator[Fleet]:
    started = Fleet(module_stack)
    with started.team, started.operator:
        wait_for(lambda: set(started.states().values()) == {"ready"}, "the workers are ready")
        yield started


@pytest.fixture
def sql(fleet: Fleet) -> Iterator[None]:
    """The adapter `sql` is loaded."""
    assert fleet.operate("load_lora_adapter", **SQL).status_code == 200
    yield
    fleet.operate("unload_lora_adapter", lora_name="sql")


def test_an_adapter_is_loaded_on_all_workers_and_is_a_model(fleet: Fleet) -> None:
    assert fleet.ask("sql").status_code == 404
    answer = fleet.operate("load_lora_adapter", **SQL)
    assert answer.status_code == 200, answer.text
    operation = answer.json()
    assert operation["outcome"] == "done"
    assert [worker["id"] for worker in operation["workers"]] == ["w-0", "w-1"]
    assert {worker["status"] for worker in operation["workers"]} == {200}
    assert set(fleet.held().values()) == {1}
    card = fleet.models()["sql"]
    assert card["parent"] == "simulated"
    assert card["root"] == "/adapters/sql"
    assert card["max_model_len"] == fleet.models()["simulated"]["max_model_len"]
    assert card["flotilla"]["pool"] == "simulated"
    assert card["flotilla"]["workers_ready"] == 2
    answered = fleet.ask("sql")
    assert (answered.status_code, answered.json()["model"]) == (200, "sql")
    assert fleet.ask("simulated").json()["model"] == "simulated"

    again = fleet.operate("load_lora_adapter", **SQL)
    assert again.status_code == 400
    assert "has already been loaded" in again.json()["error"]["message"]
    in_place = fleet.operate(
        "load_lora_adapter", lora_name="sql", lora_path="/2", load_inplace=True
    )
    assert in_place.status_code == 200
    assert fleet.models()["sql"]["root"] == "/2"

    gone = fleet.operate("unload_lora_adapter", lora_name="sql")
    assert gone.status_code == 200
    assert "sql" not in fleet.models()
    assert fleet.ask("sql").status_code == 404
    assert set(fleet.held().values()) == {0}
    assert fleet.operate("unload_lora_adapter", lora_name="sql").status_code == 404


def test_a_worker_that_starts_later_has_the_adapter_before_it_is_ready(
    fleet: Fleet, sql: None
) -> None:
    later = fleet.worker(2)
    assert later.metric("flotilla_worker_adapters") == 1
    later.terminate()
    later.popen.wait(60)


def test_a_worker_that_missed_a_call_catches_up(fleet: Fleet) -> None:
    fleet.workers[1].stop(signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(fleet.operate, "load_lora_adapter", **SQL)
            wait_for(lambda: fleet.workers[0].metric("flotilla_worker_adapters") == 1, "w-0 has it")
            fleet.workers[1].stop(signal.SIGCONT)
            assert answer.result(60).status_code == 200
    finally:
        fleet.workers[1].stop(signal.SIGCONT)
    assert set(fleet.held().values()) == {1}
    assert fleet.operate("unload_lora_adapter", lora_name="sql").status_code == 200


def test_an_adapter_that_no_worker_can_load_is_refused_with_the_engines_answer(
    fleet: Fleet,
) -> None:
    wrong = fleet.operate("load_lora_adapter", lora_name="x", lora_path="missing/x")
    assert wrong.status_code == 404
    assert "can't be loaded" in wrong.json()["error"]["message"]
    assert len(wrong.json()["operation"]["workers"]) == 2
    assert "x" not in fleet.models()
    (pool,) = fleet.operator.get("/admin/pools").json()["data"]
    assert pool["adapters"] == {}
    conflict = fleet.operate("load_lora_adapter", lora_name="simulated", lora_path="/x")
    assert conflict.status_code == 400


def test_routes_with_vllms_names_give_vllms_answers(fleet: Fleet) -> None:
    loaded = fleet.operator.post("/v1/load_lora_adapter", json=SQL)
    assert (loaded.status_code, loaded.json()) == (200, {})
    unloaded = fleet.operator.post(
        "/v1/unload_lora_adapter?pool=simulated", json={"lora_name": "sql"}
    )
    assert (unloaded.status_code, unloaded.json()) == (200, {})
    assert fleet.operator.post("/reset_prefix_cache").json() == {"success": True}
    for path in ("/reset_mm_cache", "/reset_encoder_cache", "/start_profile", "/stop_profile"):
        answer = fleet.operator.post(path)
        assert (answer.status_code, answer.json()) == (200, {}), path
    for path in ("/pause", "/resume", "/sleep", "/wake_up"):
        assert fleet.operator.post(path).status_code == 200, path
    assert fleet.operator.get("/is_sleeping").json() == {"is_sleeping": False}
    assert fleet.operator.get("/is_paused").json() == {"is_paused": False}
    assert fleet.operator.get("/server_info").json()["vllm_config"] == "simulated"
    assert fleet.operator.post("/sleep?level=x").status_code == 400
    assert fleet.operator.post("/pause?pool=unknown").status_code == 404
    assert fleet.operator.get("/sleep").status_code == 405


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/admin/pools/simulated/pause"),
        ("GET", "/admin/pools"),
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/sleep"),
        ("GET", "/server_info"),
    ],
)
def test_only_an_operators_key_may_call_them(fleet: Fleet, method: str, path: str) -> None:
    refused = fleet.team.request(method, path, json={})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_scope")
    assert http.request(method, fleet.gateway.url + path, json={}).status_code == 401


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/admin/pools/unknown/pause", {}, 404),
        ("/admin/pools/simulated/fly", {}, 404),
        ("/admin/pools/simulated/pause", {"mode": "abort"}, 400),
        ("/admin/pools/simulated/pause?x=1", {}, 400),
        ("/admin/pools/simulated/load_lora_adapter", {"lora_name": "x"}, 400),
        ("/admin/pools/simulated/load_lora_adapter", [], 400),
        ("/v1/load_lora_adapter", {}, 400),
    ],
)
def test_wrong_calls(fleet: Fleet, path: str, body: Any, status: int) -> None:
    answer = fleet.operator.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]


def test_a_paused_pool_keeps_its_jobs_until_it_is_resumed(fleet: Fleet) -> None:
    assert fleet.operate("pause").status_code == 200
    try:
        wait_for(lambda: set(fleet.states().values()) == {"paused"}, "the workers are paused")
        assert fleet.operator.get("/is_paused").json() == {"is_paused": True}
        body = {"model": "simulated", "prompt": "hello", "max_tokens": 3}
        job = fleet.team.post("/jobs", json={"endpoint": "/v1/completions", "body": body}).json()
        wait_for(
            lambda: (
                "paused by an operator"
                in fleet.team.get(f"/jobs/{job['id']}").json().get("wait_reason", "")
            ),
            "the job says why it waits",
        )
        later = fleet.stack.worker(wait=False, worker_id="w-3", **SIMULATED)
        wait_for(lambda: fleet.states().get("w-3") == "paused", "a later worker is paused, too")
    finally:
        assert fleet.operate("resume").status_code == 200
    done = fleet.team.get(f"/jobs/{job['id']}?wait=30").json()
    assert done["state"] == "completed"
    later.terminate()
    later.popen.wait(60)


def test_sleep_hands_running_jobs_back_and_they_go_on_after_wake_up(fleet: Fleet) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(fleet.ask, "simulated", max_tokens=2000, ignore_eos=True, temperature=0)
        wait_for(
            lambda: sum(w.metric("flotilla_worker_slots", use="busy") for w in fleet.workers),
            "the job runs",
        )
        assert fleet.operate("sleep", level=1).status_code == 200
        assert not asked.done()
        wait_for(lambda: set(fleet.states().values()) == {"paused"}, "the workers sleep")
        assert fleet.operate("wake_up").json()["outcome"] == "done"
        answer = asked.result(60)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 2000


def test_a_call_that_a_worker_does_not_answer_in_time_is_incomplete(
    fleet: Fleet,
) -> None:
    gateway = fleet.stack.gateway(**IMPATIENT_OF_OPERATIONS, **PATIENT)
    fleet.workers[1].stop(signal.SIGSTOP)
    try:
        answer = http.post(f"{gateway.url}/reset_prefix_cache", timeout=60)
    finally:
        fleet.workers[1].stop(signal.SIGCONT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "operation_incomplete")
    statuses = {w["id"]: w["status"] for w in answer.json()["operation"]["workers"]}
    assert statuses == {"w-0": 200, "w-1": 504}
    gateway.terminate()


def test_each_call_is_in_the_audit_log(fleet: Fleet, sql: None) -> None:
    log = Path(fleet.gateway.log)
    lines = [line for line in log.read_text().splitlines() if "flotilla.audit" in line]
    assert any(
        "load_lora_adapter" in line and '"ops"' in line and "/adapters/sql" in line
        for line in lines
    )
    entries = http.get(f"{fleet.gateway.url}/admin/audit", headers=OPERATOR).json()["data"]
    (entry, *_) = [each for each in entries if each["action"] == "pool.load_lora_adapter"]
    assert (entry["tenant"], entry["details"]["outcome"]) == ("ops", "done")
    assert entry["details"]["options"]["lora_path"] == SQL["lora_path"]


def test_a_job_for_an_adapter_that_was_unloaded_gets_an_answer(fleet: Fleet) -> None:
    assert fleet.operate("load_lora_adapter", **SQL).status_code == 200
    assert fleet.operate("pause").status_code == 200
    body = {"model": "sql", "prompt": "hello", "max_tokens": 3}
    job = fleet.team.post("/jobs", json={"endpoint": "/v1/completions", "body": body}).json()
    assert fleet.operate("unload_lora_adapter", lora_name="sql").status_code == 200
    assert fleet.operate("resume").status_code == 200
    done = fleet.team.get(f"/jobs/{job['id']}?wait=30").json()
    assert done["state"] == "failed"
    assert done["status_code"] == 404
