"""A Redis Cluster on loopback, for tests."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from shared.store.redis.cluster import FLEET_TAG, shard_tags
from tests.redis_server import RedisServer, free_port
from tests.waiting import wait_for

ON_CLUSTER = os.environ.get("TEST_REDIS") == "cluster"
"""The Redis of the tests is a node of a cluster."""
one_redis_only = pytest.mark.skipif(ON_CLUSTER, reason="tests what only one Redis has")
NODE_TIMEOUT_MS = 1000
"""A node that does not answer for so long is taken for down."""


_TAGS = [FLEET_TAG, *(tag for shards in (1, 2, 3, 4) for tag in shard_tags(shards))]
FLEET_SLOTS = frozenset(key_slot(tag.encode()) for tag in _TAGS)
"""The slots of the fleets of tests, which have at most four shards."""


def fleet_on_one_node(folder: Path) -> RedisCluster:
    """Two masters: the first has the slots of a fleet, the second no key that it may touch. So the
    first can be used as one Redis, and refuses scripts that touch what lies elsewhere."""
    return RedisCluster(folder, 2, node_timeout_ms=60_000, only=FLEET_SLOTS)


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
        """`only`: the slots of the first of two masters, the second has all others. `options`: more
        of each node's configuration, by name."""
        self._only = only
        self.masters = [
            _node(folder / f"node-{n}", node_timeout_ms, options) for n in range(masters)
        ]
        self.replicas = [
            _node(folder / f"replica-{n}", node_timeout_ms, options)
            for n in range(masters if replicas else 0)
        ]

    @property
    def nodes(self) -> Sequence[RedisServer]:
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
        wait_for(self._usable, "the cluster can be used")

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

    def _usable(self) -> bool:
        return all(is_usable(node) for node in self.nodes)

    def master_of(self, slot: int, asked: RedisServer | None = None) -> RedisServer:
        """The node that has the slot, by what a node answers."""
        reply = call(asked or self.masters[0], "CLUSTER SLOTS")
        for first, last, (_, port, *_), *_ in reply:
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        raise AssertionError(f"no node has slot {slot}")

    def close(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            node.kill()


def _node(folder: Path, timeout_ms: int, options: dict[str, str] | None) -> RedisServer:
    folder.mkdir(parents=True)
    node = RedisServer(folder)
    node.options |= {
        "cluster-enabled": "yes",
        "cluster-config-file": "nodes.conf",
        "cluster-port": str(free_port()),
        "cluster-node-timeout": str(timeout_ms),
        "cluster-require-full-coverage": "no",
        "repl-diskless-sync-delay": "0",
    } | (options or {})
    return node


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


def is_usable(node: RedisServer) -> bool:
    """Whether the node serves its slots, and has its master's data if it is a replica."""
    with node.client() as client:
        info = client.info("replication")
        state = client.execute_command("CLUSTER INFO")["cluster_state"]
    return bool(state == "ok" and (info["role"] == "master" or info["master_link_status"] == "up"))


def move_slot(slot: int, source: RedisServer, target: RedisServer) -> None:
    """Give a slot with all its keys to another master, key by key."""
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
        while found := client.execute_command("CLUSTER GETKEYSINSLOT", slot, 100):
            client.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *found)
    for node in (target, source):
        call(node, "CLUSTER SETSLOT", slot, "NODE", node_id(target))


def wait_for_master(cluster: RedisCluster, slot: int, not_at: RedisServer) -> float:
    """Wait until another node has the slot. Returns when, on the monotonic clock."""
    asked = [node for node in cluster.nodes if node is not not_at]

    def elsewhere() -> bool:
        return all(cluster.master_of(slot, node) is not not_at for node in asked)

    wait_for(elsewhere, "another node has the slot")
    return time.monotonic()
