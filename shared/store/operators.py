"""What operators have asked for and changed, and what the autoscaler has decided of it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from shared.fleet.scale_decisions import Scale, ScalingEvent, WorkerRange
from shared.fleet.worker_answer import WorkerAnswer
from shared.platform.malformed import MalformedValues
from shared.store import keys
from shared.store.documents import Documents, Kind
from shared.store.errors import StoreError
from shared.store.queue import Queue
from shared.store.servers import Servers
from shared.tenants.api_key import ApiKey

log = logging.getLogger("flotilla.audit")

# --- the desired state of pools ---


class PoolSwitches(NamedTuple):
    """How a pool does not work as usual."""

    paused: bool = False
    """Its workers claim nothing."""
    intake_stopped: bool = False
    """Gateways refuse new requests for it."""


class _Adapter(NamedTuple):
    pool: str
    options: dict[str, Any]
    """Of `load_lora_adapter`."""


class DesiredPool(NamedTuple):
    """What a pool's workers shall do, those that it has and those that start later.

    A worker reads it before it is ready and with every heartbeat, and changes what is different, so
    a lost message or connection only delays it.
    """

    switches: PoolSwitches
    adapters: Mapping[str, Mapping[str, Any]]
    """Hold these adapters: name -> options of `load_lora_adapter`."""


_SWITCHES = Kind("switches", TypeAdapter(PoolSwitches))
_ADAPTERS = Kind("adapter", TypeAdapter(_Adapter), lambda adapter: adapter.pool)


class DesiredPools:
    """Reads and writes it. The methods raise StoreError."""

    def __init__(self, queue: Queue, malformed: MalformedValues | None = None) -> None:
        """`malformed` counts what can't be read; None: it is logged only."""
        self._switches = Documents(queue, _SWITCHES, malformed)
        self._adapters = Documents(queue, _ADAPTERS, malformed)

    async def read(self, pool: str) -> DesiredPool:
        """What is asked for of the pool."""
        switches = await self._switches.get(pool) or PoolSwitches()
        adapters = (await self._adapters.of_tenants([pool]))[pool]
        by_name = {each.options["lora_name"]: each.options for each in adapters}
        return DesiredPool(switches, dict(sorted(by_name.items())))

    async def switches(self, pools: Sequence[str]) -> Mapping[str, PoolSwitches]:
        """Those of these pools that do not work as usual."""
        found = await self._switches.some(pools)
        return {pool: switches for pool, switches in found.items() if any(switches)}

    async def switch(self, pool: str, **changes: bool) -> None:
        """Change fields of its PoolSwitches."""
        await self._switches.change(
            pool, lambda switches: switches._replace(**changes), new=PoolSwitches()
        )

    async def put_adapter(self, pool: str, options: Mapping[str, Any], *, replace: bool) -> bool:
        """Its workers shall hold this adapter; False if there is another one of its name."""
        adapter = _Adapter(pool, dict(options))
        stored = await self._adapters.change(
            f"{pool} {options['lora_name']}",
            lambda found: adapter if replace else found,
            new=adapter,
        )
        return stored == adapter

    async def remove_adapter(self, pool: str, name: str) -> bool:
        """Its workers shall not hold this adapter; False if none was asked for."""
        return await self._adapters.delete(f"{pool} {name}", lambda _: True) is not None


# --- operator calls ---

_ANSWER = TypeAdapter(WorkerAnswer)
_ANSWERS_KEPT_S = 600


class OperationAnswers:
    """The workers' answers to an operator call, on their way to the gateway that has sent it.

    The methods raise StoreError.
    """

    def __init__(self, servers: Servers) -> None:
        self._redis = servers.primary

    async def write(self, operation: str, worker: str, answer: WorkerAnswer) -> None:
        """Store a worker's answer; it is kept for ten minutes."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.hset(keys.fleet("operation", operation), worker, _ANSWER.dump_json(answer))
        pipe.expire(keys.fleet("operation", operation), _ANSWERS_KEPT_S)
        await pipe.execute()

    async def read(self, operation: str) -> dict[str, WorkerAnswer]:
        """All answers so far, by worker."""
        found = await self._redis.hgetall(keys.fleet("operation", operation))
        return {worker.decode(): _ANSWER.validate_json(raw) for worker, raw in found.items()}


# --- the audit trail ---

MOST_CHANGES = 10_000
"""Of a fleet; then the oldest are dropped."""
_AUDIT_ID = re.compile(r"[0-9]{1,15}-[0-9]{1,9}")


class AuditRecord(NamedTuple):
    """One change, or one that was tried."""

    action: str
    """`key.created`, `pool.pause`, ..."""
    subject: str
    """What it changes: the id of a key, a pool, ..."""
    tenant: str
    """The tenant of the operator's key."""
    key: str
    """Its id; empty: it stands in the gateway's settings."""
    reason: str
    details: Mapping[str, Any]
    id: str = ""
    """Of the stream's entry; empty before it is written."""

    @property
    def at_s(self) -> float:
        """When, Unix seconds by Redis' clock."""
        return int(self.id.partition("-")[0]) / 1000


def is_audit_id(text: str) -> bool:
    """Whether this can be the id of an entry."""
    return _AUDIT_ID.fullmatch(text) is not None


class AuditTrail:
    """What operators have changed, in the log and in Redis."""

    def __init__(self, servers: Servers) -> None:
        self._redis = servers.primary

    async def write(
        self, action: str, subject: str, operator: ApiKey, reason: str, **details: Any
    ) -> None:
        """Record what was done. The log has it even if Redis is away: it was done already."""
        record = AuditRecord(action, subject, operator.tenant, operator.id, reason, details)
        fields = {"tenant": operator.tenant, "key": operator.id, "reason": reason, **details}
        log.info("%s: %s", action, subject, extra=fields)
        entry = {"record": json.dumps(record._asdict())}
        try:
            await self._redis.xadd(
                keys.fleet("audit"), entry, maxlen=MOST_CHANGES, approximate=True
            )
        except StoreError as error:
            log.warning("%s: %s is not in Redis' audit trail: %s", action, subject, error)

    async def read(self, before: str, count: int) -> list[AuditRecord]:
        """The newest, or those before this id. Raises StoreError."""
        end = f"({before}" if before else "+"
        found = await self._redis.xrevrange(keys.fleet("audit"), end, "-", count=count)
        return [
            AuditRecord(**json.loads(fields[b"record"]) | {"id": entry.decode()})
            for entry, fields in found
        ]


# --- decisions of the autoscaler ---

HISTORY = 100
"""Decisions kept for each pool."""
_SCALE = Kind("scale", TypeAdapter(Scale))
_WORKER_RANGE = Kind("worker_range", TypeAdapter(WorkerRange))
_SCALING = Kind("scaling", TypeAdapter(tuple[ScalingEvent, ...]))


class ScaleStore:
    """The autoscaler's tick writes its decisions, all other processes read them.

    Its methods raise StoreError.
    """

    def __init__(self, queue: Queue, malformed: MalformedValues | None = None) -> None:
        """`malformed` counts the records that can't be read; None: they are logged only."""
        self._scales = Documents(queue, _SCALE, malformed)
        self.ranges = Documents(queue, _WORKER_RANGE, malformed)
        """Pool -> an operator's own range of workers; the next tick applies it."""
        self._events = Documents(queue, _SCALING, malformed)

    async def read(self, pools: Sequence[str]) -> tuple[float, dict[str, Scale]]:
        """The time by Redis' clock, and the last decision for each pool that has one."""
        return await self._scales.now_s(), await self._scales.some(pools)

    async def write(self, scale: Scale, change: ScalingEvent | None) -> None:
        """Store a tick's decision; `change` is added to the history."""
        await self._scales.set(scale.pool, scale)
        if change is not None:
            await self._events.change(
                scale.pool, lambda events: (change, *events)[:HISTORY], new=()
            )

    async def history(self, pool: str, count: int = HISTORY) -> Sequence[ScalingEvent]:
        """The last decisions that changed something, newest first."""
        return (await self._events.get(pool) or ())[:count]

    async def forget_but(self, pools: Collection[str]) -> int:
        """Delete what is decided for other pools; returns for how many."""
        await self.ranges.forget_but(pools)
        await self._events.forget_but(pools)
        return await self._scales.forget_but(pools)
