"""What operators have changed, newest first: a bounded stream of the fleet."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shared.store.redis import keys
from shared.store.redis.servers import Servers

MOST = 10_000
"""Of a fleet; then the oldest are dropped."""
_ID = re.compile(r"[0-9]{1,15}-[0-9]{1,9}")


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
    return _ID.fullmatch(text) is not None


class AuditRecords:
    """Writes and reads them. Methods raise StoreError."""

    def __init__(self, servers: Servers) -> None:
        self._redis = servers.primary

    async def append(self, record: AuditRecord) -> None:
        """Write one."""
        fields = record._asdict() | {"details": json.dumps(record.details)}
        del fields["id"]
        await self._redis.xadd(keys.AUDIT, fields, maxlen=MOST, approximate=True)

    async def read(self, before: str, count: int) -> Sequence[AuditRecord]:
        """The newest, or those before this id."""
        end = f"({before}" if before else "+"
        found = []
        for entry, fields in await self._redis.xrevrange(keys.AUDIT, end, "-", count=count):
            words = {name.decode(): value.decode() for name, value in fields.items()}
            details = json.loads(words.pop("details"))
            found.append(AuditRecord(**words, details=details, id=entry.decode()))
        return found
