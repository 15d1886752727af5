"""`flotilla doctor`: every finding that is not fine comes with its mend."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gateway.cli.diagnosis import Facts, Level, findings
from tests.redis_server import free_port
from tests.unit.gateway.cli.conftest import Flotilla
from tests.unit.gateway.cli.samples import LOST, NOW, overview
from tests.unit.gateway.cli.stub import Answer, StubGateway, error

CHECKS = dict.fromkeys(("redis", "eviction", "format", "relay", "fleet", "tasks"), "ok")
MODEL = {"id": "qwen", "flotilla": {"ready": True, "wait_reason": ""}}


def facts(**changes: Any) -> Facts:
    return replace(
        Facts(
            url="http://g",
            version="0.1.0",
            now_s=NOW,
            ready={"checks": CHECKS},
            versions={"version": "0.1.0", "engines": {"vllm 0.32.0": 2}},
            models=[MODEL],
            overview=overview(dead_letters=0),
        ),
        **changes,
    )


def test_a_healthy_fleet() -> None:
    found = list(findings(facts()))
    assert {each.level for each in found} == {Level.OK}
    assert not any(each.mend for each in found)
    assert len(found) >= 12


POOL = overview()["pools"][0]
MEMORY = {"ok": True, "used_memory": 90, "max_memory": 100}


@pytest.mark.parametrize(
    ("changes", "check", "level", "text", "mend"),
    [
        ({"ready": None}, "gateway", "problem", "does not answer", "flotilla up"),
        ({"ready": {"checks": {"eviction": "is lru"}}}, "eviction", "problem", "lru", "noevict"),
        ({"models": None, "errors": {"models": "no key"}}, "key", "problem", "no key", "API_KEY"),
        ({"version": "9"}, "version", "warning", "this command 9", "install flotilla 0.1.0"),
        ({"versions": {"version": "0.1.0", "engines": {"simulated": 1}}}, "engine", "warning",
         "SIMULATED", "FLOTILLA_ENGINE"),
        ({"versions": {"version": "0.1.0", "engines": {"a": 1, "b": 1}}}, "engine", "warning",
         "a, b", "drain"),
        ({"models": []}, "models", "problem", "no worker", "start a worker"),
        ({"models": [{"id": "m", "flotilla": {"ready": False, "wait_reason": "no worker runs"}}]},
         "model", "problem", "m: no worker runs", "workers ls"),
        ({"overview": None, "errors": {"overview": "not an operator"}}, "overview", "warning",
         "not an operator", "operator's key"),
        ({"now_s": NOW + 60}, "clock", "warning", "60 s", "NTP"),
        ({"overview": overview(redis=MEMORY)}, "memory", "problem", "of", "maxmemory"),
        ({"overview": overview(workers=[])}, "workers", "problem", "0 of 0", "start workers"),
        ({"overview": overview(LOST)}, "worker_lost", "problem", "w-3 was lost", "Drain w-3"),
        ({"overview": overview(pools=[POOL | {"paused": True}])}, "queue", "warning", "paused",
         "queue resume qwen"),
        ({"overview": overview(dead_letters=3)}, "dead letters", "warning", "3", "dead ls"),
    ],
)  # fmt: skip
def test_what_is_wrong_and_its_mend(
    changes: dict[str, Any], check: str, level: str, text: str, mend: str
) -> None:
    found = {each.check: each for each in findings(facts(**changes))}[check]
    assert found.level == level
    assert text in found.text
    assert mend in found.mend


def test_the_command(flotilla: Flotilla, stub: StubGateway) -> None:
    stub.answers |= {
        "GET /readyz": {"checks": CHECKS},
        "GET /version": {"version": "0.1.0", "engines": {"vllm 0.32.0": 2}},
        "GET /v1/models": {"data": [MODEL]},
        "GET /admin/overview": error("An operator's key is needed.", 403, "admin_only"),
    }
    result = flotilla("doctor")
    assert result.exit_code == 0, result.stdout
    assert "WARN  overview: not read: An operator's key is needed." in result.stdout
    assert "      mend: give an operator's key" in result.stdout
    stub.answers["GET /readyz"] = Answer({"checks": CHECKS | {"redis": "refused"}}, 503)
    result = flotilla("doctor", "--json")
    assert result.exit_code == 1
    wrong = [each for each in json.loads(result.stdout)["data"] if each["level"] == "problem"]
    assert [each["check"] for each in wrong] == ["redis"]


def test_without_a_gateway(flotilla: Flotilla) -> None:
    result = flotilla("doctor", "--url", f"http://127.0.0.1:{free_port()}")
    assert result.exit_code == 5
    assert "FAIL  gateway: no gateway answers at" in result.stdout
