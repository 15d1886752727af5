"""A Redis Cluster on loopback: masters, replicas, and what gives a slot to another master."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS

from load_tests.harness.http import free_port
from load_tests.harness.processes import Process, Processes, wait_for
from load_tests.harness.redis_server import RedisServer

NODE_TIMEOUT_MS = 1000
"""A node that does not answer for so long is taken for down."""
_PIPELINE = 100
"""`redis-cli --cluster-pipeline`; its default, 10, takes more than four times as long."""


class Node(Protocol):
    """A Redis server that is not started yet."""

    port: int
    options: dict[str, str]

    def start(self) -> None:
        """Start it, or start it again on its data; returns when it answers."""

    def kill(self) -> None:
        """End it by SIGKILL, even if it is stopped."""

    def signal(self, number: int) -> None:
        """Send a signal, as SIGSTOP and SIGCONT."""

    def client(self) -> redis.Redis:
        """A client of this node."""


class RedisCluster:
    """Masters with an equal share of the slots each, and a replica of each or none."""

    def __init__(
        self,
        make_node: Callable[[str], Node],
        masters: int = 1,
        *,
        replicas: bool = False,
        node_timeout_ms: int = NODE_TIMEOUT_MS,
        only: frozenset[int] = frozenset(),
    ) -> None:
        """`make_node` takes a name. `only`: the slots of the first of two masters, the second has
        all others."""
        self._only = only
        self.masters = [make_node(f"node-{n}") for n in range(masters)]
        self.replicas = [make_node(f"replica-{n}") for n in range(masters if replicas else 0)]
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
    def nodes(self) -> Sequence[Node]:
        """All of them."""
        return [*self.masters, *self.replicas]

    @property
    def url(self) -> str:
        """For FLOTILLA_REDIS_URL."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

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

    def master_of(self, slot: int, asked: Node | None = None) -> Node:
        """The node that has the slot, by what a node answers."""
        return self._at(slot, asked)[0]

    def replica_of(self, slot: int) -> Node:
        """A replica of the node that has the slot."""
        return self._at(slot)[1]

    def _at(self, slot: int, asked: Node | None = None) -> list[Node]:
        by_port = {node.port: node for node in self.nodes}
        for first, last, *nodes in call(asked or self.masters[0], "CLUSTER SLOTS"):
            if first <= slot <= last:
                return [by_port[port] for _, port, *_ in nodes]
        raise AssertionError(f"no node has slot {slot}")

    def wait_for_master(self, slot: int, not_at: Node) -> float:
        """Wait until another node has the slot. Returns when, on the monotonic clock."""
        asked = [node for node in self.nodes if node is not not_at]

        def elsewhere() -> bool:
            return all(self.master_of(slot, node) is not not_at for node in asked)

        wait_for(elsewhere, "another node has the slot")
        return time.monotonic()

    def close(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            node.kill()


class LoadedCluster(RedisCluster):
    """A cluster of child processes; it has started."""

    def __init__(
        self,
        processes: Processes,
        folder: Path,
        masters: int,
        *,
        replicas: bool,
        **options: str,
    ) -> None:
        """Start it with its data in `folder`. Raises ProcessError. `options` are Redis' own, with
        underscores for hyphens."""
        folder.mkdir()
        self.children: list[_ChildNode] = []

        def make_node(name: str) -> Node:
            self.children.append(_ChildNode(processes, folder / name, options))
            return self.children[-1]

        super().__init__(make_node, masters, replicas=replicas)
        self.start()
        first = self.nodes[0]
        self.client: Any = redis.RedisCluster("127.0.0.1", first.port, socket_timeout=5)


class _ChildNode:
    def __init__(self, processes: Processes, folder: Path, options: dict[str, str]) -> None:
        self.port = free_port()
        self.options = dict(options)
        self._processes = processes
        self._folder = folder
        self._server: RedisServer | None = None

    @property
    def _started(self) -> RedisServer:
        assert self._server is not None, "not started"
        return self._server

    def start(self) -> None:
        if self._server is None:
            options: Any = {name.replace("-", "_"): value for name, value in self.options.items()}
            self._server = RedisServer(self._processes, self.port, self._folder, **options)
        else:
            self._server.start()

    def kill(self) -> None:
        self._started.kill()

    @property
    def process(self) -> Process:
        return self._started.process

    def signal(self, number: int) -> None:
        self.process.popen.send_signal(number)

    def client(self) -> redis.Redis:
        return self._started.client


def _bus_port(node: Node) -> str:
    return node.options["cluster-port"]


def call(node: Node, *command: str | int) -> Any:
    """The reply of a node."""
    with node.client() as client:
        return client.execute_command(*command)


def node_id(node: Node) -> str:
    """Its id in the cluster."""
    found = call(node, "CLUSTER MYID")
    return found.decode() if isinstance(found, bytes) else str(found)


def _role(node: Node) -> str | None:
    """Its role; None if it does not serve its slots, or is a replica without its master's data."""
    with node.client() as client:
        info: Any = client.info("replication")
        state = client.execute_command("CLUSTER INFO")["cluster_state"]
    synced = info["role"] == "master" or info["master_link_status"] == "up"
    return info["role"] if state == "ok" and synced else None


def move_slot(slot: int, source: Node, target: Node) -> None:
    """Give a slot with all its keys to another master, `_PIPELINE` keys in a call."""
    with begun_move(slot, source, target):
        finish_move(slot, source, target)


@contextlib.contextmanager
def begun_move(slot: int, source: Node, target: Node) -> Iterator[None]:
    """During this context the slot moves from `source` to `target`; no key has been moved yet."""
    call(target, "CLUSTER SETSLOT", slot, "IMPORTING", node_id(source))
    call(source, "CLUSTER SETSLOT", slot, "MIGRATING", node_id(target))
    yield


def finish_move(slot: int, source: Node, target: Node) -> None:
    """Move the keys of a slot that is being given away, and name its new node."""
    with source.client() as client:
        while found := client.execute_command("CLUSTER GETKEYSINSLOT", slot, _PIPELINE):
            client.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *found)
    for node in (target, source):
        call(node, "CLUSTER SETSLOT", slot, "NODE", node_id(target))


def stop_until_replaced(cluster: RedisCluster, slot: int, master: Node) -> float:
    """Stop the master of a slot until another node has it. Returns when that was."""
    master.signal(signal.SIGSTOP)
    try:
        return cluster.wait_for_master(slot, master)
    finally:
        master.signal(signal.SIGCONT)
