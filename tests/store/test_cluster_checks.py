"""Where the shards of a cluster lie."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from redis.crc import key_slot

from shared.store import keys
from shared.store.errors import StoreError
from shared.store.servers import Servers, shard_tags
from tests.harness.servers import RedisCluster, RedisServer, call, fleet_on_one_node


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    cluster = fleet_on_one_node(tmp_path_factory.mktemp("cluster"))
    with contextlib.closing(cluster):
        cluster.start()
        yield cluster


@pytest.fixture
def node(cluster: RedisCluster) -> RedisServer:
    """The node with all slots of the fleet, emptied."""
    call(cluster.masters[0], "FLUSHALL")
    return cluster.masters[0]


@pytest.mark.parametrize("nodes", [2, 3, 4, 6])
@pytest.mark.parametrize("shards", [1, 2, 3, 6, 12, 4096])
def test_shards_lie_evenly(shards: int, nodes: int) -> None:
    tags = shard_tags(shards)
    assert len(set(tags)) == shards
    found = [0] * nodes
    for tag in tags:
        found[key_slot(tag.encode()) * nodes // 16384] += 1
    assert sum(found) == shards
    assert max(found) - min(found) <= 1


def test_the_tags_stay_as_they_are() -> None:
    """Jobs lie under these names."""
    assert shard_tags(1) == ["1"]
    assert shard_tags(3) == ["3", "12", "0"]
    assert shard_tags(12) == ["18", "7", "50", "19", "33", "51", "106", "5", "49", "107", "4", "48"]


async def test_a_script_that_touches_another_slot_is_refused(
    cluster: RedisCluster, node: RedisServer
) -> None:
    """So the tests that run on such a cluster prove that no script does."""
    async with Servers(cluster.url, 3) as servers:
        for command in ("SET", "SPUBLISH"):
            script = f"return redis.call('{command}', 'elsewhere', 1)"
            with pytest.raises(StoreError, match="non local key"):
                await servers.of(0).eval(script, 1, keys.base(0))
