"""A Redis Cluster on loopback, for tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from load_tests.harness import redis_cluster
from shared.store.redis.cluster import FLEET_TAG, shard_tags
from tests.redis_server import RedisServer

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
