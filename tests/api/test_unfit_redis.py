"""A Redis that evicts is refused; one whose user may not do everything, as managed services have
it, is enough for all but the little that can't be done without."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.client import Call, chat, http, job, join
from tests.harness.fleet import Stack
from tests.harness.refusals import PROGRAMS, refusal
from tests.harness.servers import RedisServer, call, fleet_on_one_node
from tests.harness.waiting import wait_for

WITHOUT_ADMIN = ("-config", "-info", "-function", "-@admin", "-@dangerous")
FAST = {"sim_step_ms": 25, "sim_step_us_per_seq": 0}


@pytest.mark.parametrize("program", PROGRAMS)
def test_several_shards_need_a_cluster(
    own_redis: RedisServer, tmp_path: Path, program: str
) -> None:
    said = refusal(program, own_redis.url, tmp_path, shards=2)
    assert "FLOTILLA_SHARDS" in said
    assert "redis+cluster://" in said
    with own_redis.client() as client:
        assert client.dbsize() == 0


# --- eviction ---


@pytest.fixture
def evicting(tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder)
    server.options = {"maxmemory": str(100 << 20), "maxmemory-policy": "allkeys-lru"}
    server.start()
    yield server
    server.stop()


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_redis_that_evicts_is_refused_at_start(
    evicting: RedisServer, tmp_path: Path, program: str
) -> None:
    said = refusal(program, evicting.url, tmp_path)
    assert evicting.url.removeprefix("redis://") in said
    assert "maxmemory-policy allkeys-lru" in said


def test_a_gateway_is_not_ready_while_redis_evicts(evicting: RedisServer, tmp_path: Path) -> None:
    with (
        evicting.client() as client,
        contextlib.closing(Stack(evicting.url, tmp_path)) as stack,
    ):
        client.config_set("maxmemory-policy", "noeviction")
        gateway = stack.gateway()
        assert gateway.metric("flotilla_redis_evicts") == 0
        client.config_set("maxmemory-policy", "volatile-lru")
        wait_for(lambda: not gateway.ready(), "it is not ready")
        answer = http.get(f"{gateway.url}/readyz")
        assert answer.status_code == 503
        assert "volatile-lru" in answer.json()["checks"]["eviction"]
        assert gateway.metric("flotilla_redis_evicts") == 1
        assert gateway.metric("flotilla_gateway_ready", check="eviction") == 0
        client.config_set("maxmemory-policy", "noeviction")
        wait_for(gateway.ready, "it is ready again")


# --- rights ---


class Nodes:
    """Those of a Redis, and the URL for a user of them."""

    def __init__(self, nodes: list[RedisServer], url: str) -> None:
        self._nodes = nodes
        self._url = url

    def url_without(self, *rights: str) -> str:
        """Of a new user who may do everything but this."""
        for node in self._nodes:
            call(node, "ACL SETUSER", "tenant", "reset", "on", ">s3cret", "~*", "&*", "+@all")
            call(node, "ACL SETUSER", "tenant", *rights)
        return self._url.replace("://", "://tenant:s3cret@")


@pytest.fixture(params=["redis", "cluster"])
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nodes]:
    if request.param == "redis":
        own_redis: RedisServer = request.getfixturevalue("own_redis")
        yield Nodes([own_redis], own_redis.url)
        return
    with contextlib.closing(fleet_on_one_node(tmp_path / "cluster")) as cluster:
        cluster.start()
        yield Nodes(list(cluster.nodes), cluster.url)


def test_a_user_without_administration_is_enough(nodes: Nodes, tmp_path: Path) -> None:
    with contextlib.closing(Stack(nodes.url_without(*WITHOUT_ADMIN), tmp_path)) as stack:
        gateway, worker = stack.gateway(), stack.worker(**FAST)
        body = chat(stream=True, max_tokens=100, ignore_eos=True)
        streams = [Call(gateway, body) for _ in range(4)]
        wait_for(lambda: all(len(each.events) > 10 for each in streams), "all have begun")
        worker.kill()
        stack.worker(**FAST)
        join(streams)
        assert [stream.error for stream in streams] == [""] * len(streams)
        submitted = {"body": chat("a job", max_tokens=3)}
        job_id = http.post(f"{gateway.url}/jobs", json=submitted, timeout=60).json()["id"]
        wait_for(lambda: job(gateway, job_id)["state"] == "completed", "the job has ended")
        assert "set maxmemory-policy noeviction" in gateway.log.read_text()


@pytest.mark.parametrize("missing", ["-pubsub", "-@scripting"])
def test_without_pubsub_or_scripts_no_process_starts(
    nodes: Nodes, tmp_path: Path, missing: str
) -> None:
    said = refusal("gateway", nodes.url_without(missing), tmp_path)
    assert "scripts have to be able to write" in said
    assert "s3cret" not in said
