"""A Redis before 7.0 is refused at start; the error names its version and the one needed."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.launcher.ports import listen_problem
from tests.e2e.up_run import Up
from tests.redis_server import free_port
from tests.settings import child_environment
from tests.waiting import wait_for

OLD_REDIS = (sys.executable, str(Path(__file__).parent / "stand_ins" / "old_redis.py"))


@pytest.fixture
def old_url() -> Iterator[str]:
    port = free_port()
    server = subprocess.Popen([*OLD_REDIS, "--port", str(port)])
    wait_for(lambda: listen_problem("127.0.0.1", port), "it listens")
    yield f"redis://127.0.0.1:{port}/0"
    server.terminate()
    server.wait()


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "gateway"],
        ["-m", "worker"],
        ["-m", "gateway.maintenance"],
        ["-c", "from gateway.cli.main import main; main()", "up"],
    ],
)
def test_each_process_refuses_it(old_url: str, tmp_path: Path, command: list[str]) -> None:
    environment = child_environment(redis_url=old_url, engine="simulated", port=0)
    ended = subprocess.run(
        [sys.executable, *command],
        env=environment | {"PYTHONPATH": str(Path.cwd())},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert "6.2.14" in ended.stderr
    assert "7.0 or newer" in ended.stderr
    assert "Traceback" not in ended.stderr


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
