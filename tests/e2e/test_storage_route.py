"""What `/admin/storage` says of a real storage, and `flotilla doctor` with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.client import http
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for


def storage(gateway: Process) -> dict[str, Any]:
    found: dict[str, Any] = http.get(f"{gateway.url}/admin/storage").raise_for_status().json()
    return found


def kinds(gateway: Process) -> list[str]:
    return [problem["kind"] for problem in storage(gateway)["problems"]]


def doctor(gateway: Process) -> dict[str, str]:
    """Each check and its level."""
    command = [str(Path(sys.executable).with_name("flotilla")), "doctor", "--json"]
    environment = os.environ | {"FLOTILLA_URL": gateway.url}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    return {each["check"]: each["level"] for each in json.loads(done.stdout)["data"]}


def test_a_gateway_without_a_storage(stack: Stack) -> None:
    gateway = stack.gateway()
    found = storage(gateway)
    assert (found["configured"], found["free_bytes"], found["problems"]) == (False, None, [])
    assert doctor(gateway)["storage"] == "ok"


def test_a_folder_is_tried(stack: Stack, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    gateway = stack.gateway(storage_url=str(folder))
    found = storage(gateway)
    assert (found["configured"], found["problems"]) == (True, [])
    assert found["free_bytes"] > 0
    assert [path.name for path in folder.iterdir()] == ["fleets"], "nothing is left of the try"
    (folder / "probes").write_bytes(b"")  # no folder: nothing can be written into it
    assert kinds(gateway) == ["storage_unavailable"]
    assert doctor(gateway)["storage_unavailable"] == "problem"


def test_another_storage_than_the_fleets(stack: Stack, tmp_path: Path) -> None:
    assert kinds(stack.gateway(storage_url=str(tmp_path / "one"))) == []
    other = stack.gateway(storage_url=str(tmp_path / "other"))
    assert kinds(other) == ["storage_unavailable"]
    assert "is not the one" in storage(other)["problems"][0]["sentence"]


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
    assert kinds(gateway) == ["batches_late"]
    assert storage(gateway)["open_batches"] == 1
    assert doctor(gateway)["batches_late"] == "problem"
    with redis_server.client() as client:  # it was created an hour ago
        (key,) = client.scan_iter(f"*{batch['id']}")
        client.hset(key, "created_at", batch["created_at"] - 3599)
    assert kinds(gateway) == ["batches_late", "batch_stuck"]
    stack.maintenance(storage_url=folder)
    wait_for(lambda: kinds(gateway) == [], "maintenance has ended the batch", 60)


@pytest.mark.parametrize("key", ["team", ""])
def test_it_is_for_operators(stack: Stack, key: str) -> None:
    gateway = stack.gateway(api_keys="team:team", admin_keys="ops:ops")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    answer = http.get(f"{gateway.url}/admin/storage", headers=headers)
    assert answer.status_code == (403 if key else 401)
