"""A Redis before 7.0 is refused at start; the error names its version and the one needed."""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.refusals import PROGRAMS, refusal
from tests.harness.servers import free_port
from tests.harness.settings import ROOT
from tests.harness.up import Up
from tests.harness.waiting import wait_for

OLD_REDIS = (sys.executable, str(ROOT / "tests/harness/stand_ins/old_redis.py"))


@pytest.fixture
def old_url() -> Iterator[str]:
    port = free_port()
    server = subprocess.Popen([*OLD_REDIS, "--port", str(port)])
    with socket.socket() as connection:
        wait_for(lambda: connection.connect_ex(("127.0.0.1", port)) == 0, "it listens")
    yield f"redis://127.0.0.1:{port}/0"
    server.terminate()
    server.wait()


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_process_refuses_it(old_url: str, tmp_path: Path, program: str) -> None:
    said = refusal(program, old_url, tmp_path)
    assert "6.2.14" in said
    assert "7.0 or newer" in said


def test_up_refuses_the_systems_old_server(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    server = programs / "redis-server"
    server.write_text(f'#!/bin/sh\nexec {shlex.join(OLD_REDIS)} "$@"\n')
    server.chmod(0o755)
    fleet = Up(tmp_path, "1", PATH=str(programs))
    assert fleet.wait_for_exit() == 1
    assert "6.2.14" in fleet.text()
    assert "7.0 or newer" in fleet.text()
