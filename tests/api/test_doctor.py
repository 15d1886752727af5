"""What a gateway finds wrong with its fleet, and `flotilla doctor`, which prints it."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.harness.cli import run_flotilla
from tests.harness.client import http
from tests.harness.fleet import Process, Stack
from tests.harness.keys import KEYS, OPERATOR, bearer
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for

DISK = shutil.disk_usage(tempfile.gettempdir())
needs_disk = pytest.mark.skipif(
    DISK.free < 0.12 * DISK.total, reason="the disk is nearly full, which is found, too"
)


def findings(gateway: Process, **headers: str) -> list[dict[str, Any]]:
    """What the gateway finds."""
    answer = http.get(f"{gateway.url}/admin/doctor", headers=headers).raise_for_status()
    found: list[dict[str, Any]] = answer.json()["data"]
    for each in found:
        assert each.keys() == {"name", "state", "text", "remedy"}
        assert bool(each["remedy"]) is (each["state"] != "ok"), each
    return found


def states(gateway: Process) -> dict[str, str]:
    return {each["name"]: each["state"] for each in findings(gateway)}


def wrong(gateway: Process, about: str) -> list[str]:
    """What is wrong with files and batches."""
    found = states(gateway)
    return [name for name, state in found.items() if state != "ok" and name.startswith(about)]


def doctor(gateway: Process, key: str = "") -> dict[str, str]:
    """Each check of the command and its state."""
    environment = {"FLOTILLA_URL": gateway.url, "FLOTILLA_API_KEY": key}
    done = run_flotilla("doctor", "--json", environment=environment, code=None)
    return {each["name"]: each["state"] for each in json.loads(done.stdout)["data"]}


def test_a_gateway_alone(stack: Stack) -> None:
    gateway = stack.gateway()
    assert states(gateway) == dict.fromkeys(("fleet", "storage", "webhooks", "usage", "keys"), "ok")
    assert doctor(gateway).items() >= states(gateway).items()


@needs_disk
def test_a_folder_is_tried(stack: Stack, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    gateway = stack.gateway(storage_url=str(folder))
    assert states(gateway)["storage"] == "ok"
    assert [path.name for path in folder.iterdir()] == ["fleets"], "nothing is left of the try"
    (folder / "probes").write_bytes(b"")  # no folder: nothing can be written into it
    assert wrong(gateway, "storage") == ["storage_unavailable"]
    assert doctor(gateway)["storage_unavailable"] == "problem"


@needs_disk
def test_another_storage_than_the_fleets(stack: Stack, tmp_path: Path) -> None:
    assert wrong(stack.gateway(storage_url=str(tmp_path / "one")), "storage") == []
    other = stack.gateway(storage_url=str(tmp_path / "other"))
    assert wrong(other, "storage") == ["storage_unavailable"]


def test_batches_without_maintenance(
    stack: Stack, tmp_path: Path, redis_server: RedisServer
) -> None:
    folder = str(tmp_path / "files")
    gateway = stack.gateway(storage_url=folder)
    file = {"file": ("in.jsonl", b"{}\n")}
    sent = http.post(f"{gateway.url}/v1/files", data={"purpose": "batch"}, files=file)
    body = {
        "input_file_id": sent.json()["id"],
        "endpoint": "/v1/completions",
        "completion_window": "1h",
    }
    batch = http.post(f"{gateway.url}/v1/batches", json=body).raise_for_status().json()
    assert wrong(gateway, "batch") == ["batches_late"]
    assert doctor(gateway)["batches_late"] == "problem"
    with redis_server.client() as client:  # it was created an hour ago
        (key,) = client.scan_iter(f"*{batch['id']}")
        client.hset(key, "created_at", batch["created_at"] - 3599)
    assert wrong(gateway, "batch") == ["batches_late", "batch_stuck"]
    stack.maintenance(storage_url=folder)
    wait_for(lambda: wrong(gateway, "batch") == [], "maintenance has ended the batch", 60)


def test_many_keys_and_budgets(stack: Stack) -> None:
    gateway = stack.gateway(**KEYS)
    stack.worker()
    stack.maintenance()
    keys = f"{gateway.url}/admin/keys"
    made = [
        http.post(keys, headers=OPERATOR, json={"tenant": "team", "limits": limits}).json()
        for limits in [{"tokens_per_day": 10}, *[{}] * 101]
    ]
    headers = bearer(made[0]["secret"])
    body = {"prompt": "x", "max_tokens": 20, "ignore_eos": True}
    wait_for(
        lambda: http.post(f"{gateway.url}/v1/completions", headers=headers, json=body).is_success,
        "the key is known",
    )

    def told() -> str:
        return " ".join(each["text"] for each in findings(gateway, **OPERATOR))

    assert "102 keys" in told()
    wait_for(lambda: made[0]["id"] in told(), "its budget is used up")
    assert "keys" in doctor(gateway, "adm1n")
    assert doctor(gateway, "s3cret")["doctor"] == "warning"


@pytest.mark.parametrize("key", ["team", ""])
def test_it_is_for_operators(stack: Stack, key: str) -> None:
    gateway = stack.gateway(api_keys="team:team", admin_keys="ops:ops")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    answer = http.get(f"{gateway.url}/admin/doctor", headers=headers)
    assert answer.status_code == (403 if key else 401)
