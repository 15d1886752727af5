"""What a process checks before it starts on a cluster, or on what may be one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from redis.crc import key_slot

from shared.platform.settings import SettingsError
from shared.store.interface import StoreError
from shared.store.redis import keys
from shared.store.redis.cluster import shard_tags
from shared.store.redis.servers import Servers
from shared.store.redis.start_checks import refuse_unfit, write_problems
from tests.harness.servers import RedisCluster, RedisServer, call, fleet_on_one_node
from tests.harness.settings import Settings
from tests.redis.conftest import open_queue


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


async def test_the_first_process_fixes_the_number_of_shards(
    cluster: RedisCluster, node: RedisServer
) -> None:
    await refuse_unfit(Settings(redis_url=cluster.url, shards=3))
    await refuse_unfit(Settings(redis_url=cluster.url, shards=3))
    assert call(node, "GET", keys.SHARDS) == b"3"
    with pytest.raises(SettingsError, match=r"FLOTILLA_SHARDS is 2, and the fleet .* has 3 shards"):
        await refuse_unfit(Settings(redis_url=cluster.url, shards=2))


async def test_a_server_of_the_other_kind_is_refused(
    cluster: RedisCluster, node: RedisServer, own_redis: RedisServer
) -> None:
    with pytest.raises(SettingsError, match="is a node of a cluster: use redis\\+cluster://"):
        await refuse_unfit(Settings(redis_url=f"redis://:secret@127.0.0.1:{node.port}"))
    alone = own_redis.url.replace("redis:", "redis+cluster:").removesuffix("/0")
    with pytest.raises(SettingsError, match="is no cluster: use redis://") as caught:
        await refuse_unfit(Settings(redis_url=alone))
    assert "secret" not in str(caught.value)


async def test_each_slot_is_tested_by_itself(cluster: RedisCluster, node: RedisServer) -> None:
    """And no key is written where its slot is not."""
    async with open_queue(cluster.url, shards=3) as queue:
        assert await write_problems(queue, "gw") == ("", ["", "", ""])
        found = {key.decode() for key in call(node, "KEYS", "*")}
        assert found == {keys.PROBE, *(keys.base(n) + keys.PROBE_WORD for n in range(3))}
        assert call(cluster.masters[1], "DBSIZE") == 0


async def test_a_script_that_touches_another_slot_is_refused(
    cluster: RedisCluster, node: RedisServer
) -> None:
    """So the tests that run on such a cluster prove that no script does."""
    async with Servers(cluster.url, 3) as servers:
        for command in ("SET", "SPUBLISH"):
            script = f"return redis.call('{command}', 'elsewhere', 1)"
            with pytest.raises(StoreError, match="non local key"):
                await servers.of(0).eval(script, 1, keys.base(0))
