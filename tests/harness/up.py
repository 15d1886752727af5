"""Runs `flotilla up` as a child process, and finds its descendants."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.harness.processes import process_tree
from tests.harness.servers import free_port
from tests.harness.settings import ROOT, child_environment
from tests.harness.waiting import DEADLINE_S, wait_for

STAND_INS = (sys.executable, str(Path(__file__).parent / "stand_ins" / "run_up.py"))
"""`flotilla up` with stand-ins instead of gateway and worker."""
FLOTILLA = str(Path(sys.executable).with_name("flotilla"))
REAL = (FLOTILLA, "up")


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid: int) -> list[int]:
    """Return all running descendants of `pid`."""
    return [each for each in process_tree(pid) if each != pid and is_alive(each)]


class Up:
    """A `flotilla up` in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        command: tuple[str, ...] = STAND_INS,
        **environment: str,
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = folder / "output"
        self.environment = {
            **child_environment(
                port=self.port, worker_port=0, engine="simulated", drain_deadline_s=5
            ),
            "PYTHONPATH": str(ROOT),
            "GATEWAY_PORT": str(self.port),  # for stand-ins of workers, which do not get the other
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
        """Return the output so far."""
        return self.output.read_text()

    def wait_for_output(
        self, pattern: str, count: int = 1, timeout_s: float = DEADLINE_S
    ) -> list[str]:
        """Wait for `count` matches of a regular expression in the output; return all matches."""

        def found() -> bool:
            self.pids.update(children(self.process.pid))
            assert self.process.poll() is None or re.search(pattern, self.text()), self.text()
            return len(re.findall(pattern, self.text())) >= count

        wait_for(found, f"{pattern!r} {count} times in:\n{self.text()}", timeout_s)
        return re.findall(pattern, self.text())

    def wait_until_ready(self, timeout_s: float = DEADLINE_S) -> Up:
        """Wait until all processes are ready."""
        self.wait_for_output("Ctrl-C stops everything", timeout_s=timeout_s)
        return self

    def wait_for_exit(self) -> int:
        """Wait for the end; return the exit status."""
        return self.process.wait(DEADLINE_S)

    def kill(self) -> None:
        """Kill what is left of it; pytest shows the output if the test has failed."""
        print(self.text())
        for pid in filter(is_alive, {self.process.pid, *self.pids, *children(self.process.pid)}):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def wait_until_all_ended(self) -> None:
        """Wait until all descendants seen so far have ended."""
        assert self.pids, "the test found no descendants"
        wait_for(
            lambda: not any(map(is_alive, self.pids)), f"{self.pids} have ended:\n{self.text()}"
        )
