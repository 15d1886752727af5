"""Keys and channels of a cluster: each in the slot of its shard."""

from __future__ import annotations

import pytest

from shared.store import keys
from shared.store.scripts import library
from shared.store.servers import shard_tags
from shared.store.subscription import channel_command

SHARDS = 3


@pytest.fixture
def tags() -> list[str]:
    """Those of a fleet on a cluster."""
    keys.use_tags(shard_tags(SHARDS))
    return shard_tags(SHARDS)


def test_one_redis_has_the_keys_it_had() -> None:
    assert keys.base(2) == "flotilla:{2}:"
    assert keys.channel_at(2, "flotilla:tokens:gw") == "flotilla:tokens:gw"
    assert channel_command("PUBLISH") == "PUBLISH"
    assert "SPUBLISH" not in library()[1]


def test_every_key_of_a_shard_has_its_tag(tags: list[str]) -> None:
    for shard, tag in enumerate(tags):
        start = f"flotilla:{{{tag}}}:"
        assert keys.base(shard) == start
        assert keys.job(shard, "x") == f"{start}job:x"
        for channel in (keys.tokens_channel("gw"), keys.control_channel("w")):
            assert keys.channel_at(shard, channel).startswith(start)


def test_a_shard_that_no_fleet_has_finds_nothing_and_fails_nowhere(tags: list[str]) -> None:
    assert keys.base(SHARDS + 1) == f"flotilla:{{{tags[1]}}}:"


def test_scripts_publish_in_the_slot_of_the_shard(tags: list[str]) -> None:
    head, body = library()[1].split("-- One call of a script")
    assert "local SHARDED = true" in head
    assert "local PUBLISH = 'SPUBLISH'" in head
    for word in ("'PUBLISH'", "'NUMSUB'"):
        assert word not in body
    assert body.count("flotilla:") == 1  # of channels, where there is no cluster
