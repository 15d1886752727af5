"""Shards of a Redis Cluster get other masters, each way once, and no client gets anything wrong.

`make faults ARGS=--cluster` is the long run. Nothing here depends on how fast the machine is.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from load_tests.faults.cluster.injection import Fault
from load_tests.faults.cluster.run import ClusterResult, play


def wrong(result: ClusterResult) -> object:
    return result.ends, [(each.seen.request, each.errors) for each in result.calls if each.errors]


def test_streams_go_on_when_a_shard_gets_another_master(tmp_path: Path) -> None:
    result = asyncio.run(play(tmp_path / "fleet", times=1, clients=24, seed="1", progress=print))
    assert result.failures(pauses=False) == [], wrong(result)
    assert Counter(each.fault for each in result.injections) == dict.fromkeys(Fault, 1)
    assert result.ends["complete"] > sum(result.ends.values()) // 2
    for fault in Fault:
        assert result.pauses(fault, touched=True), "streams of the shard were open"
