"""A Redis master, its replica and the Sentinels that watch them, for tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import redis

from tests.redis_server import RedisServer, embedded_binary, free_port
from tests.waiting import wait_for

SERVICE = "jobs"
DOWN_AFTER_MS = 1000
"""A master that does not answer for so long is taken for down."""


class SentinelGroup:
    """One master, one replica, three Sentinels, each on a free port."""

    def __init__(self, folder: Path, *, down_after_ms: int = DOWN_AFTER_MS) -> None:
        self._folder = folder
        self._down_after_ms = down_after_ms
        self.servers = [self._server("master"), self._server("replica")]
        self._sentinels: list[subprocess.Popen[bytes]] = []
        self._ports = [free_port() for _ in range(3)]

    def _server(self, name: str) -> RedisServer:
        folder = self._folder / name
        folder.mkdir()
        return RedisServer(folder)

    @property
    def url(self) -> str:
        """For FLOTILLA_REDIS_URL."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"redis+sentinel://{hosts}/{SERVICE}/0"

    def start(self) -> None:
        """Start all; returns when the Sentinels know the replica."""
        master, replica = self.servers
        replica.options["replicaof"] = f"127.0.0.1 {master.port}"
        master.start()
        replica.start()
        binary = shutil.which("redis-server") or embedded_binary()
        for port in self._ports:
            folder = self._folder / f"sentinel-{port}"
            folder.mkdir()
            file = folder / "sentinel.conf"
            file.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
                f"sentinel monitor {SERVICE} 127.0.0.1 {master.port} 2\n"
                f"sentinel down-after-milliseconds {SERVICE} {self._down_after_ms}\n"
                f"sentinel failover-timeout {SERVICE} 5000\n"
            )
            command = [binary, str(file), "--sentinel"]
            self._sentinels.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        wait_for(self._complete, "the Sentinels know each other and the replica")

    def _complete(self) -> bool:
        try:
            states = [
                redis.Redis(port=port, socket_timeout=5).sentinel_master(SERVICE)
                for port in self._ports
            ]
        except redis.RedisError:
            return False
        return all(
            state["num-slaves"] == 1 and state["num-other-sentinels"] == 2 for state in states
        )

    def master_port(self) -> int:
        """The port of the master that the first Sentinel names."""
        client = redis.Redis(port=self._ports[0], socket_timeout=5)
        return int(client.sentinel_get_master_addr_by_name(SERVICE)[1])

    def close(self) -> None:
        """End everything that was started."""
        for process in self._sentinels:
            process.kill()
            process.wait(20)
        for server in self.servers:
            server.stop()
