"""FLOTILLA_DURABLE: a Redis that may lose acknowledged writes is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.maintenance.housekeeping import Housekeeping
from shared.platform.settings import SettingsError
from shared.store.redis.durability import problem, weakness
from shared.store.redis.fleet_registry import Registry
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.redis_client import connect
from shared.store.redis.servers import Servers
from shared.store.redis.start_checks import refuse_unfit
from tests.harness.servers import RedisServer, free_port
from tests.harness.settings import Settings
from tests.harness.waiting import eventually


def test_what_is_wrong_is_named() -> None:
    assert problem({"appendonly": "yes", "appendfsync": "always"}) == ""
    assert problem({"appendonly": "yes", "appendfsync": "everysec"}) == (
        "appendfsync is everysec, it has to be always"
    )
    assert "appendonly is no" in problem({"appendonly": "no", "appendfsync": "always"})


async def test_it_is_refused_unless_every_write_is_on_disk(own_redis: RedisServer) -> None:
    await refuse_unfit(Settings(redis_url=own_redis.url))
    settings = Settings(redis_url=own_redis.url, durable=True)
    with pytest.raises(SettingsError, match="appendfsync is everysec") as caught:
        await refuse_unfit(settings)
    assert f"127.0.0.1:{own_redis.port}/0" in str(caught.value)
    with own_redis.client() as client:
        client.config_set("appendfsync", "always")
    await refuse_unfit(settings)


async def test_a_server_that_is_away_or_hides_its_settings_passes(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    await refuse_unfit(Settings(redis_url=f"redis://127.0.0.1:{free_port()}/0", durable=True))
    with own_redis.client() as client:
        client.acl_setuser("default", enabled=True, nopass=True, commands=["-config"])
    await refuse_unfit(Settings(redis_url=own_redis.url, durable=True))
    assert "can't be read" in caplog.text


async def test_a_server_without_an_append_only_file_is_reported(own_redis: RedisServer) -> None:
    redis = connect(own_redis.url)
    assert await weakness(redis) == ""
    with own_redis.client() as client:
        client.config_set("appendonly", "no")
    assert (
        await weakness(redis) == "appendonly is no: jobs are lost when Redis stops; set it to yes"
    )
    await redis.aclose()


async def test_a_part_of_a_transaction_is_not_carried_out_at_the_next_start(
    own_redis: RedisServer,
) -> None:
    """Redis was killed while it wrote a transaction to its append-only file."""
    with own_redis.client() as client:
        client.set("before", 1)
        folder = Path(str(client.config_get("dir")["dir"]))
    own_redis.stop()
    (log,) = list(folder.rglob("*.incr.aof"))  # noqa: ASYNC240
    multi, first = b"*1\r\n$5\r\nMULTI\r\n", b"*3\r\n$3\r\nSET\r\n$4\r\npart\r\n$1\r\n1\r\n"
    cut = multi + first + first[:20]
    log.write_bytes(log.read_bytes() + cut)
    own_redis.start()
    async with Servers(own_redis.url) as servers:
        for _ in range(2):
            await Housekeeping(JobQueue(servers), Registry(servers.primary)).rewrite_logs()

        async def is_written() -> bool:
            found = await servers.primary.info("persistence")
            return bool(found["aof_last_rewrite_time_sec"] >= 0)

        await eventually(is_written, "the append-only file is written anew")
        assert not await servers.primary.exists("part")
        await servers.primary.set("after", 1)
    own_redis.stop(kill=True)
    own_redis.start()
    with own_redis.client() as client:
        assert sorted(client.keys("[abp]*")) == [b"after", b"before"]
