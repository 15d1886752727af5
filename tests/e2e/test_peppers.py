"""Peppers of API keys: without one no key is made; one is replaced while gateways run."""

from __future__ import annotations

from pathlib import Path

from tests.api.test_keys import code, status
from tests.harness.client import http
from tests.harness.fleet import Process, Stack
from tests.harness.keys import KEYS, OPERATOR, PEPPER
from tests.harness.waiting import wait_for

NEW_PEPPER = "n" * 32


def test_without_a_pepper_or_keys_in_the_settings_none_is_made(stack: Stack) -> None:
    made_by = stack.gateway(key_peppers=PEPPER, **KEYS)
    http.post(f"{made_by.url}/admin/keys", headers=OPERATOR, json={"tenant": "t"})
    for settings in (KEYS, {"key_peppers": PEPPER}):
        gateway = stack.gateway(**settings)
        made = http.post(f"{gateway.url}/admin/keys", headers=OPERATOR, json={"tenant": "t"})
        assert code(made) == (501, "keys_not_configured")
        assert "FLOTILLA_" in made.json()["error"]["message"]
        rows = http.get(f"{gateway.url}/admin/keys?limit=1", headers=OPERATOR).json()["data"]
        assert [row["pepper"] for row in rows] == [
            "current" if "key_peppers" in settings else "unknown"
        ]


def test_a_pepper_is_replaced_without_an_interruption(redis_url: str, tmp_path: Path) -> None:
    stack = Stack(redis_url, tmp_path)
    try:
        gateways = [stack.gateway(key_peppers=PEPPER, **KEYS) for _ in range(2)]
        made = http.post(f"{gateways[0].url}/admin/keys", headers=OPERATOR, json={"tenant": "t"})
        key = made.json()
        unused = http.post(
            f"{gateways[0].url}/admin/keys", headers=OPERATOR, json={"tenant": "t"}
        ).json()

        def peppers(gateway: Process) -> dict[str, str]:
            rows = http.get(f"{gateway.url}/admin/keys", headers=OPERATOR).json()["data"]
            return {row["id"]: row["pepper"] for row in rows}

        for value in (f"{PEPPER},{NEW_PEPPER}", f"{NEW_PEPPER},{PEPPER}", NEW_PEPPER):
            for n in range(2):
                gateways[n].terminate()
                gateways[n].popen.wait(20)
                gateways[n] = stack.gateway(key_peppers=value, **KEYS)
                for gateway in gateways:
                    wait_for(lambda g=gateway: status(g, key) == 200, "the key works")  # type: ignore[misc]
            if value.startswith(NEW_PEPPER):
                wait_for(lambda: peppers(gateways[0])[key["id"]] == "current", "it is moved")
        assert peppers(gateways[1])[unused["id"]] == "unknown"
        assert status(gateways[1], unused) == 401
    finally:
        stack.close()
