"""The processes of a local fleet, found by what they inherit from the test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.offline import LocalFleet
from gateway.offline.fleet_process import FleetError
from shared.platform.settings import SettingsError
from tests.harness.settings import child_environment
from tests.harness.up import FLOTILLA, is_alive
from tests.harness.waiting import wait_for

__all__ = ["FLOTILLA", "FleetError", "LocalFleet", "LocalProcesses", "SettingsError"]

SETTINGS: Mapping[str, Any] = {
    # Another fleet's, which a local one must not touch.
    "redis_url": "redis://127.0.0.1:1/0",
    "maintenance_redis_url": "redis://127.0.0.1:1/1",
    "api_keys": "other-key",
    "sim_step_ms": 40,  # few tokens, which cost CPU time, keep a run going
    "sim_step_us_per_seq": 0,
    "sim_max_num_seqs": 8,
}


class LocalProcesses:
    """Starts programs; finds them and all that they have started, orphans too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = f"TESTS_OFFLINE={folder}"

    def start(self, *argv: str, log: str = "log", **settings: Any) -> subprocess.Popen[bytes]:
        """Start a program in the folder, whose output goes to the log."""
        name, _, value = self._mark.partition("=")
        environment = child_environment(**{**SETTINGS, **settings}) | {name: value}
        # Proxies are for other machines.
        environment |= {"HTTP_PROXY": "http://127.0.0.1:1", "http_proxy": "http://127.0.0.1:1"}
        with (self.folder / log).open("ab") as output:
            return subprocess.Popen(
                argv, cwd=self.folder, env=environment, stdout=output, stderr=output,
                stdin=subprocess.DEVNULL, start_new_session=True,
                # Of tests that run in the background of a shell SIGINT is ignored.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )  # fmt: skip

    def running(self) -> dict[int, str]:
        """Pid -> command line."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            pid = int(path.name)
            try:
                inherited = (path / "environ").read_bytes().split(b"\0")
                if self._mark.encode() in inherited and is_alive(pid):
                    line = (path / "cmdline").read_bytes()
                    found[pid] = line.replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
        return found

    def worker(self) -> int:
        """One of the workers."""
        return next(pid for pid, line in self.running().items() if line.endswith("-m worker"))

    def wait_for_end(self) -> None:
        """Wait until nothing runs."""
        wait_for(lambda: not self.running(), "all processes have ended")

    def text(self, log: str = "log") -> str:
        """What they have printed."""
        return (self.folder / log).read_text()

    def events(self) -> list[dict[str, Any]]:
        """The progress that a command with --json has printed."""
        lines = [each for each in self.text().splitlines() if each.startswith('{"id"')]
        return [json.loads(each) for each in lines]

    def wait(self, process: subprocess.Popen[bytes], status: int) -> None:
        """Wait for the end of a program, which has this status."""
        assert process.wait(120) == status, self.text()

    def kill(self) -> None:
        """Kill what still runs."""
        for pid in self.running():
            with contextlib.suppress(ProcessLookupError):  # it ended with another one
                os.kill(pid, 9)
