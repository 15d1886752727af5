"""`flotilla status`: once, as JSON, and refreshed in a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.cli import run_flotilla
from tests.harness.fleet import Process, Stack
from tests.harness.settings import ROOT, child_environment
from tests.harness.up import FLOTILLA
from tests.harness.waiting import wait_for

Start = Callable[..., "subprocess.Popen[bytes]"]


def heed_interrupts() -> None:
    """Of a process that was started in the background, children ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def gateway(stack: Stack) -> Process:
    stack.worker(worker_id="w-1")
    return stack.gateway()


@pytest.fixture
def start(gateway: Process, tmp_path: Path) -> Iterator[Start]:
    """Start the command with `--watch`; it is killed at the end."""
    started: list[subprocess.Popen[bytes]] = []
    environment = child_environment() | {
        "FLOTILLA_URL": gateway.url, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "160",
        "LINES": "40",
    }  # fmt: skip

    def start(*options: str, output: int) -> subprocess.Popen[bytes]:
        command = [FLOTILLA, "status", "--watch", *options]
        process = subprocess.Popen(
            command, stdin=output, stdout=output, stderr=output, env=environment, cwd=tmp_path,
            start_new_session=True, preexec_fn=heed_interrupts,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_once(gateway: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {"FLOTILLA_URL": gateway.url}
    page = run_flotilla("status", environment=environment).stdout
    assert "w-1" in page
    assert "WAITING" in page
    shown = json.loads(run_flotilla("status", "--json", environment=environment).stdout)
    assert [worker["id"] for worker in shown["workers"]] == ["w-1"]
    run_flotilla("status", "--watch", environment=environment, code=2)


def test_as_json_each_overview_is_a_line(start: Start) -> None:
    ours, theirs = os.pipe()
    start("--json", output=theirs)
    os.close(theirs)
    with os.fdopen(ours) as lines:
        for _ in range(2):
            assert json.loads(lines.readline())["object"] == "overview"


def test_in_a_terminal_it_is_refreshed(start: Start, stack: Stack, gateway: Process) -> None:
    terminal, end = pty.openpty()
    process = start(output=end)
    os.close(end)
    seen = b""

    def shows(text: str) -> bool:
        nonlocal seen
        while select.select([terminal], [], [], 0)[0]:
            seen += os.read(terminal, 1 << 16)
        return text.encode() in seen

    try:
        wait_for(lambda: shows("w-1"), "the worker is shown")
        stack.worker(worker_id="w-2")
        wait_for(lambda: shows("w-2"), "the new worker is shown")
        gateway.kill()
        wait_for(lambda: shows("no gateway answers"), "it says that the gateway is gone")
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        os.close(terminal)
