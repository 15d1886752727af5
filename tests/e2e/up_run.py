"""One `flotilla up` as a subprocess, and the processes below it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.redis_server import free_port

ROOT = Path(__file__).parents[2]
STAND_INS = (sys.executable, str(Path(__file__).parent / "stand_ins" / "run_up.py"))
"""`flotilla up` with stand-ins for gateway and worker."""
REAL = (str(Path(sys.executable).with_name("flotilla")), "up")
PATIENCE_S = 60.0


def until(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def lives(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid: int) -> list[int]:
    """All living processes below `pid`."""
    try:
        direct = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [p for child in direct for p in (child, *children(child)) if lives(p)]


class Up:
    """One `flotilla up` in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        command: tuple[str, ...] = STAND_INS,
        **environment: str,
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self.output = folder / "output"
        self.environment = {
            **{name: value for name, value in os.environ.items() if "FLOTILLA" not in name},
            "PYTHONPATH": str(ROOT),
            "FLOTILLA_PORT": str(self.port),
            "FLOTILLA_WORKER_PORT": "0",
            "FLOTILLA_ENGINE": "simulated",
            "FLOTILLA_DRAIN_DEADLINE_S": "5",
            **environment,
        }
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, *arguments],
                cwd=folder,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.pids: set[int] = set()

    def text(self) -> str:
        return self.output.read_text()

    def until_says(self, pattern: str, count: int = 1, timeout_s: float = PATIENCE_S) -> list[str]:
        """All matches of `pattern`, once there are `count`."""

        def said() -> bool:
            self.pids.update(children(self.process.pid))
            assert self.process.poll() is None or re.search(pattern, self.text()), self.text()
            return len(re.findall(pattern, self.text())) >= count

        until(said, f"{pattern!r} {count} times in:\n{self.text()}", timeout_s)
        return re.findall(pattern, self.text())

    def until_ready(self, timeout_s: float = PATIENCE_S) -> Up:
        self.until_says("Ctrl-C stops everything", timeout_s=timeout_s)
        return self

    def status(self) -> int:
        return self.process.wait(PATIENCE_S)

    def until_nothing_left(self) -> None:
        assert self.pids, "the test saw no process"
        until(lambda: not any(map(lives, self.pids)), f"{self.pids} are gone:\n{self.text()}")
