"""What gives a shard another master, and how long that takes."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from enum import StrEnum

from redis.crc import key_slot

from shared.store.servers import shard_tags
from tests.harness.servers import RedisCluster, RedisServer, call, move_slot, stop_until_replaced
from tests.harness.waiting import wait_for


class Fault(StrEnum):
    """What is done to the master of a shard."""

    KILL = "master killed"
    """SIGKILL; started again once its replica is the master."""
    STOP = "master stopped"
    """SIGSTOP, its connections stay; it goes on once its replica is the master."""
    FAILOVER = "planned failover"
    MOVE = "slot moved"
    """To another master, key by key; the next move brings it back."""


MAY_LOSE = (Fault.KILL, Fault.STOP)
"""Those after which acknowledged writes may be missing."""


@dataclass(frozen=True, slots=True)
class Injection:
    """One fault that was injected; times of the monotonic clock."""

    fault: Fault
    shards: frozenset[int]
    """Those that had the master."""
    began: float
    ended: float
    """Another node had the shard."""

    @property
    def took_s(self) -> float:
        """How long the shard had no master that all nodes knew."""
        return self.ended - self.began


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault, and the nodes that it is about."""

    fault: Fault
    shards: frozenset[int]
    slot: int
    master: RedisServer
    target: RedisServer
    """Where `MOVE` brings the slot."""
    replica: RedisServer


def plan_fault(
    cluster: RedisCluster, fault: Fault, rng: random.Random, shards: int
) -> PlannedFault:
    """Choose the shard whose master gets the fault."""
    slots = [key_slot(tag.encode()) for tag in shard_tags(shards)]
    masters = [cluster.master_of(slot) for slot in slots]
    away = [shard for shard, at in enumerate(masters) if masters.count(at) > 1]
    shard = rng.choice(away if fault is Fault.MOVE and away else range(shards))
    slot, master = slots[shard], masters[shard]
    others = [node for node in map(cluster.master_of, _a_slot_of_each(cluster)) if node != master]
    free = [node for node in others if node not in masters]
    touched = (
        {shard} if fault is Fault.MOVE else {n for n, at in enumerate(masters) if at == master}
    )
    target, replica = rng.choice(free or others), cluster.replica_of(slot)
    return PlannedFault(fault, frozenset(touched), slot, master, target, replica)


def inject(cluster: RedisCluster, planned: PlannedFault) -> Injection:
    """Inject the fault; return when the cluster is whole again."""
    slot, master = planned.slot, planned.master
    began = time.monotonic()
    if planned.fault is Fault.KILL:
        master.kill()
        ended = cluster.wait_for_master(slot, master)
        master.start()
    elif planned.fault is Fault.STOP:
        ended = stop_until_replaced(cluster, slot, master)
    elif planned.fault is Fault.FAILOVER:
        call(planned.replica, "CLUSTER FAILOVER")
        ended = cluster.wait_for_master(slot, master)
    else:
        move_slot(slot, master, planned.target)
        ended = cluster.wait_for_master(slot, master)
    wait_for(cluster.usable, "the cluster is whole again")
    return Injection(planned.fault, planned.shards, began, ended)


def _a_slot_of_each(cluster: RedisCluster) -> list[int]:
    """The first slot of each master's share, which no fault moves."""
    return list(range(0, 16384, 16384 // len(cluster.masters) + 1))
