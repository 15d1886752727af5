"""`flotilla files put`: one request, whose file is read from the disk while it is sent."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.cli import run_flotilla
from tests.harness.fleet import Process, Stack
from tests.harness.up import FLOTILLA

Flotilla = Callable[..., Any]
MB = 1 << 20
MAX_BODY, MAX_FILE = MB, 128 * MB


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    return module_stack.gateway(
        storage_url=str(module_stack.folder / "files"),
        max_body_bytes=MAX_BODY,
        max_file_bytes=MAX_FILE,
    )


@pytest.fixture
def flotilla(gateway: Process, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Flotilla:
    """Run a command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return functools.partial(run_flotilla, environment={"FLOTILLA_URL": gateway.url})


def write(path: Path, n_bytes: int) -> None:
    with path.open("wb") as file:
        file.truncate(n_bytes)


def peak_bytes(gateway: Process, path: Path) -> int:
    """The most memory that a command of its own process has while it uploads a file."""
    command = [FLOTILLA, "files", "put", str(path)]
    environment = os.environ | {"FLOTILLA_URL": gateway.url}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024


def test_a_file_may_be_larger_than_a_body(flotilla: Flotilla, tmp_path: Path) -> None:
    data = os.urandom(3 * MAX_BODY + 1)
    name = 'a "quoted" ä.bin'
    (tmp_path / name).write_bytes(data)
    file = flotilla("files", "put", name, "--purpose", "user_data").stdout.strip()
    flotilla("files", "get", file, "-o", "copy.bin")
    assert (tmp_path / "copy.bin").read_bytes() == data
    (listed,) = json.loads(flotilla("files", "ls", "--json").stdout)["data"]
    assert (listed["id"], listed["purpose"]) == (file, "user_data")
    flotilla("files", "rm", file)


def test_a_file_above_its_limit_is_refused(flotilla: Flotilla, tmp_path: Path) -> None:
    write(tmp_path / "large.bin", MAX_FILE + 100 * 1024)
    refused = flotilla("files", "put", "large.bin", "--purpose", "user_data", code=2)
    assert str(MAX_FILE) in refused.stderr
    assert json.loads(flotilla("files", "ls", "--json").stdout)["data"] == []


def test_a_file_is_not_held_in_memory(gateway: Process, tmp_path: Path) -> None:
    small, large = tmp_path / "small.bin", tmp_path / "large.bin"
    write(small, 1)
    write(large, MAX_FILE)
    assert peak_bytes(gateway, large) - peak_bytes(gateway, small) < MAX_FILE / 2
