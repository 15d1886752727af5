"""`flotilla doctor`: every finding that is not fine comes with what to do."""

from __future__ import annotations

import json
import time
from importlib.metadata import version
from typing import Any

import pytest

from tests.harness.servers import free_port
from tests.unit.gateway.cli.conftest import Flotilla
from tests.unit.gateway.cli.samples import LOST, overview
from tests.unit.gateway.cli.stub import Answer, StubGateway, error

CHECKS = dict.fromkeys(("redis", "eviction", "format", "relay", "fleet", "tasks"), "ok")
MODEL = {"id": "qwen", "flotilla": {"ready": True, "wait_reason": ""}}
HERE = version("flotilla")
STORAGE = {"configured": True, "free_bytes": 3 << 30, "open_batches": 2, "problems": []}
WEBHOOKS = {"events": 0, "endpoints": 0, "problems": []}
LEDGER = {"dropped": 0, "problems": []}
LATE = {"kind": "batches_late", "level": "problem", "sentence": "nobody works", "do": "Start it."}


@pytest.fixture
def healthy(stub: StubGateway) -> StubGateway:
    stub.answers |= {
        "GET /readyz": {"checks": CHECKS},
        "GET /version": {"version": HERE, "engines": {"vllm 0.32.0": 2}},
        "GET /v1/models": {"data": [MODEL]},
        "GET /admin/overview": overview(at=time.time()),
        "GET /admin/storage": STORAGE,
        "GET /admin/webhooks": WEBHOOKS,
        "GET /admin/ledger": LEDGER,
        "GET /admin/keys": {"data": []},
        "GET /admin/tenants": {"data": []},
    }
    return stub


@pytest.mark.usefixtures("healthy")
def test_a_healthy_fleet(flotilla: Flotilla) -> None:
    result = flotilla("doctor", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)["data"]
    assert {(each["level"], each["do"]) for each in found} == {("ok", "")}
    names = ["gateway", *CHECKS, "version", "key", "model", "clock", "fleet"]
    names += ["storage", "batches", "webhooks", "usage", "keys"]
    assert [each["check"] for each in found] == names
    assert found[-5]["text"] == "files can be stored, 3 GiB are free"


@pytest.mark.parametrize(
    ("changes", "text"),
    [({"configured": False, "open_batches": 0}, "are off"), ({"free_bytes": None}, "be stored")],
)
def test_what_is_no_problem_of_the_storage(
    healthy: StubGateway, flotilla: Flotilla, changes: dict[str, Any], text: str
) -> None:
    healthy.answers["GET /admin/storage"] = STORAGE | changes
    result = flotilla("doctor", "--json")
    assert result.exit_code == 0
    found = {each["check"]: each for each in json.loads(result.stdout)["data"]}["storage"]
    assert (found["level"], found["do"]) == ("ok", "")
    assert found["text"].endswith((text, "is empty"))


READY, VERSION, MODELS, OVERVIEW = "/readyz", "/version", "/v1/models", "/admin/overview"
FILES, HOOKS, KEYS = "/admin/storage", "/admin/webhooks", "/admin/keys"
TENANTS = "/admin/tenants"
NEARLY = {"tenant": "team", "limits": {"tokens_per_day": 5_000_000, "tokens_per_month": 9_000_000},
          "used": {"tokens_today": 4_600_000, "tokens_this_month": 8_000_000}}  # fmt: skip
USE = "/admin/ledger"
UNSERVED = {"id": "m", "flotilla": {"ready": False, "wait_reason": "no worker runs"}}


@pytest.mark.parametrize(
    ("path", "answer", "check", "level", "text", "do"),
    [
        (READY, Answer({"checks": {"eviction": "lru"}}, 503), "eviction", "problem", "lru",
         "noeviction"),
        (READY, {"checks": {"new": "bad"}}, "new", "problem", "bad", "log"),
        (MODELS, error("no key", 401), "key", "problem", "no key", "API_KEY"),
        (VERSION, {"version": "9", "engines": {}}, "version", "warning", f"this command {HERE}",
         "Install flotilla 9"),
        (VERSION, {"version": HERE, "engines": {"simulated": 1}}, "engine", "warning", "SIMULATED",
         "FLOTILLA_ENGINE"),
        (VERSION, {"version": HERE, "engines": {"a": 1, "b": 1}}, "engine", "warning", "a, b",
         "drain"),
        (MODELS, {"data": []}, "model", "problem", "no worker", "Start a worker"),
        (MODELS, {"data": [UNSERVED]}, "model", "problem", "m: no worker runs", "Start a worker"),
        (OVERVIEW, overview(), "clock", "warning", "differ by", "NTP"),
        (OVERVIEW, overview(LOST), "worker_lost", "problem", "w-3 was lost",
         "Start it again."),
        (FILES, STORAGE | {"problems": [LATE]}, "batches_late", "problem", "nobody works",
         "Start it."),
        (FILES, error("no such route", 404), "storage", "warning", "not read", "gateway's log"),
        (HOOKS, WEBHOOKS | {"problems": [LATE]}, "batches_late", "problem", "nobody works",
         "Start it."),
        (HOOKS, WEBHOOKS | {"endpoints": 2}, "webhooks", "ok", "on their way to 2 endpoints", ""),
        (USE, LEDGER | {"problems": [LATE]}, "batches_late", "problem", "nobody works",
         "Start it."),
        (USE, LEDGER | {"dropped": 7}, "usage", "ok", "in the sums; 7 jobs dropped ever", ""),
        (KEYS, {"data": [{"pepper": "old"}]}, "keys", "ok", "1 key in Redis, 1 of them with", ""),
        (KEYS, {"data": [{"pepper": "unknown"}]}, "keys", "warning", "1 key made with another",
         "FLOTILLA_KEY_PEPPERS"),
        (KEYS, {"data": [NEARLY | {"id": "key_1", "pepper": "current"}]}, "budgets", "ok",
         "the key key_1 of team has used 4.6M of 5.0M tokens/day", ""),
        (TENANTS, {"data": [NEARLY]}, "budgets", "ok", "team has used 4.6M of 5.0M", ""),
    ],
)  # fmt: skip
def test_what_is_wrong_and_what_to_do(
    healthy: StubGateway,
    flotilla: Flotilla,
    path: str,
    answer: Any,
    check: str,
    level: str,
    text: str,
    do: str,
) -> None:
    healthy.answers[f"GET {path}"] = answer
    result = flotilla("doctor", "--json")
    found = {each["check"]: each for each in json.loads(result.stdout)["data"]}[check]
    assert found["level"] == level
    assert text in found["text"]
    assert do in found["do"]
    assert result.exit_code == (level == "problem")


def test_without_an_operators_key(healthy: StubGateway, flotilla: Flotilla) -> None:
    healthy.answers["GET /admin/overview"] = error("An operator's key is needed.", 403)
    result = flotilla("doctor")
    assert result.exit_code == 0, result.stdout
    assert "WARN  overview: not read: An operator's key is needed." in result.stdout
    assert "      do: Give an operator's key" in result.stdout


def test_without_a_gateway(flotilla: Flotilla) -> None:
    result = flotilla("doctor", "--url", f"http://127.0.0.1:{free_port()}")
    assert result.exit_code == 5
    assert "FAIL  gateway: no gateway answers at" in result.stdout
