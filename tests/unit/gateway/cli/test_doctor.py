"""`flotilla doctor`: every finding that is not fine comes with what to do."""

from __future__ import annotations

import json
import time
from importlib.metadata import version
from typing import Any

import pytest

from tests.harness.servers import free_port
from tests.unit.gateway.cli.conftest import Flotilla
from tests.unit.gateway.cli.stub import Answer, StubGateway, error

CHECKS = dict.fromkeys(("redis", "eviction", "format", "relay", "fleet", "tasks"), "ok")
MODEL = {"id": "qwen", "flotilla": {"ready": True, "wait_reason": ""}}
HERE = version("flotilla")
FINE = {"name": "storage", "state": "ok", "text": "files can be stored", "remedy": ""}
LATE = {"name": "batches_late", "state": "problem", "text": "nobody works", "remedy": "Start it."}


@pytest.fixture
def healthy(stub: StubGateway) -> StubGateway:
    stub.answers |= {
        "GET /readyz": {"checks": CHECKS},
        "GET /version": {"version": HERE, "engines": {"vllm 0.32.0": 2}},
        "GET /v1/models": {"data": [MODEL]},
        "GET /admin/doctor": {"at": time.time(), "data": [FINE]},
    }
    return stub


@pytest.mark.usefixtures("healthy")
def test_a_healthy_fleet(flotilla: Flotilla) -> None:
    result = flotilla("doctor", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)["data"]
    assert {(each["state"], each["remedy"]) for each in found} == {("ok", "")}
    names = ["gateway", *CHECKS, "version", "key", "model", "clock", "storage"]
    assert [each["name"] for each in found] == names
    assert found[-1] == FINE


READY, VERSION, MODELS, DOCTOR = "/readyz", "/version", "/v1/models", "/admin/doctor"
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
        (DOCTOR, {"at": 0, "data": []}, "clock", "warning", "differ by", "NTP"),
        (DOCTOR, {"at": 0, "data": [FINE, LATE]}, "batches_late", "problem", "nobody works",
         "Start it."),
        (DOCTOR, error("no such route", 404), "doctor", "warning", "not read", "gateway's log"),
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
    found = {each["name"]: each for each in json.loads(result.stdout)["data"]}[check]
    assert found["state"] == level
    assert text in found["text"]
    assert do in found["remedy"]
    assert result.exit_code == (level == "problem")


def test_without_an_operators_key(healthy: StubGateway, flotilla: Flotilla) -> None:
    healthy.answers["GET /admin/doctor"] = error("An operator's key is needed.", 403)
    result = flotilla("doctor")
    assert result.exit_code == 0, result.stdout
    assert "WARN  doctor: not read: An operator's key is needed." in result.stdout
    assert "      do: Give an operator's key" in result.stdout


def test_without_a_gateway(flotilla: Flotilla) -> None:
    result = flotilla("doctor", "--url", f"http://127.0.0.1:{free_port()}")
    assert result.exit_code == 5
    assert "FAIL  gateway: no gateway answers at" in result.stdout
