"""The reader's two terminals: one in which the fleet runs, one for commands."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.harness.servers import free_port
from tests.harness.up import children, is_alive
from tests.harness.waiting import wait_for
from tests.page.tour.document import ROOT, URL

_MAKE = "make() { shift; exec flotilla up ${1#ARGS=}; }\n"
"""What `make up ARGS=...` does once everything is installed."""
_END_S = 30.0
_COMMAND_S = 120.0


class Terminals:
    """A fleet in a folder of its own, and a shell in the same folder."""

    def __init__(self, folder: Path) -> None:
        """`folder` is empty."""
        self._folder = folder
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._log = folder / "up.txt"
        tools = Path(sys.executable).parent
        (folder / ".venv").symlink_to(tools.parent)
        self._environment = {
            name: value for name, value in os.environ.items() if "FLOTILLA" not in name
        } | {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "120",
            "NO_COLOR": "1",
        }
        self._up: subprocess.Popen[bytes] | None = None

    def start(self, commands: str) -> None:
        """Run the commands that start the fleet; returns when it serves."""
        ports = {"FLOTILLA_PORT": str(self._port), "FLOTILLA_WORKER_PORT": "0"}
        with self._log.open("wb") as output:
            self._up = subprocess.Popen(
                ["bash", "-euc", _MAKE + commands],
                cwd=self._folder,
                env=self._environment | ports,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        wait_for(self._serves, "the fleet serves")

    def run(self, commands: str) -> str:
        """Run commands in the second terminal; return what they print. They must not fail."""
        process = self.begin(commands)
        return self.end(process, commands)

    def begin(self, commands: str) -> subprocess.Popen[str]:
        """Start commands in the second terminal; `end` waits for them."""
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", commands.replace(URL, self.url)],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def end(self, process: subprocess.Popen[str], commands: str) -> str:
        """Wait for the end of what `begin` started; return what it has printed."""
        try:
            output, _ = process.communicate(timeout=_COMMAND_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        assert process.returncode == 0, f"$ {commands}\n{output}\n{self._log.read_text()[-2000:]}"
        return output

    def close(self) -> None:
        """Stop the fleet as Ctrl-C does; kill what is left after a while."""
        if self._up is None:
            return
        pids = [self._up.pid, *children(self._up.pid)]
        self._up.send_signal(signal.SIGINT)
        until = time.monotonic() + _END_S
        while any(map(is_alive, pids)) and time.monotonic() < until:
            self._up.poll()
            time.sleep(0.05)
        for pid in filter(is_alive, pids):
            os.kill(pid, signal.SIGKILL)
        self._up.wait()

    def _serves(self) -> bool:
        assert self._up is not None
        text = self._log.read_text()
        assert self._up.poll() is None, text
        return re.search("Ctrl-C stops everything", text) is not None
