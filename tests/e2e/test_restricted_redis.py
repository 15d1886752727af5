"""A Redis whose user may not do everything, as managed services have it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from load_tests.harness.redis_cluster import call
from shared.platform.settings import SettingsError
from shared.store.redis.start_checks import refuse_unfit
from tests.e2e.test_redis_faults import CHAT, FAST, Stream, body, join
from tests.harness.fleet import Stack
from tests.harness.servers import RedisCluster, RedisServer, fleet_on_one_node
from tests.harness.settings import Settings
from tests.harness.waiting import wait_for

SHARDS = 2
WITHOUT_ADMIN = ("-config", "-info", "-function", "-@admin", "-@dangerous")


class Fleets:
    """The nodes of a Redis, and the URL for a user of them."""

    def __init__(self, nodes: list[RedisServer], url: str) -> None:
        self._nodes = nodes
        self._url = url

    def url_for(self, *rights: str) -> str:
        """Of a new user who may do everything but this."""
        for node in self._nodes:
            call(node, "ACL SETUSER", "tenant", "reset", "on", ">s3cret", "~*", "&*", "+@all")
            call(node, "ACL SETUSER", "tenant", *rights)
        return self._url.replace("://", "://tenant:s3cret@")


@pytest.fixture(params=["redis", "cluster"])
def fleets(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleets]:
    if request.param == "redis":
        own_redis: RedisServer = request.getfixturevalue("own_redis")
        yield Fleets([own_redis], own_redis.url)
        return
    cluster: RedisCluster = fleet_on_one_node(tmp_path / "cluster")
    with contextlib.closing(cluster):
        cluster.start()
        yield Fleets(list(cluster.nodes), cluster.url)


def test_a_user_without_administration_is_enough(fleets: Fleets, tmp_path: Path) -> None:
    stack = Stack(fleets.url_for(*WITHOUT_ADMIN), tmp_path)
    with contextlib.closing(stack):
        gateway = stack.gateway(shards=SHARDS)
        worker = stack.worker(**FAST, shards=SHARDS)
        streams = [Stream(gateway, f"prompt {n}") for n in range(4)]
        wait_for(lambda: all(len(each.events) > 10 for each in streams), "all have begun")
        worker.kill()
        stack.worker(**FAST, shards=SHARDS)
        join(streams)
        assert [stream.error for stream in streams] == [""] * len(streams)
        job = httpx.post(
            f"{gateway.url}/jobs", json={"endpoint": CHAT, "body": body("a job", max_tokens=3)}
        ).json()

        def ended() -> bool:
            found = httpx.get(f"{gateway.url}/jobs/{job['id']}").json()
            return bool(found["state"] == "completed")

        wait_for(ended, "the job has ended")
        assert "set maxmemory-policy noeviction" in gateway.log.read_text()


@pytest.mark.parametrize("missing", ["-pubsub", "-@scripting"])
async def test_without_pubsub_or_scripts_no_process_starts(fleets: Fleets, missing: str) -> None:
    url = fleets.url_for(missing)
    with pytest.raises(SettingsError, match=r"scripts have to be able to write") as caught:
        await refuse_unfit(Settings(redis_url=url, shards=SHARDS))
    assert "s3cret" not in str(caught.value)
