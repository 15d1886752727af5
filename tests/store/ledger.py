"""The ledger of a shard, and what it should be: counted anew from all that is there."""

from __future__ import annotations

from collections import Counter
from typing import Any

from shared.store import keys
from tests.store.conftest import TENANT


def kept(store: Any, tenant: str = TENANT) -> int:
    """What the ledger counts for a tenant."""
    return int(store.hget(keys.of("kept", 0), tenant) or 0)


def check(store: Any) -> int:
    """Compare the ledger with what is there; returns the sum of all tenants."""
    counted = store.hgetall(keys.of("kept", 0))
    ledger = {name.decode(): int(n_bytes) for name, n_bytes in counted.items()}
    ledger.pop(keys.KEPT_ACCEPTED, None)
    found: Counter[str] = Counter()
    expiring: Counter[str] = Counter()
    for member in store.zrange(keys.base(0) + "expiring", 0, -1):
        name, n_bytes, tenant = member.decode().split(" ", 2)
        expiring[name] += int(n_bytes)
        if name.startswith(("gone:", "log:", "body:")):
            found[tenant] += int(n_bytes)
    for kind in ("job", "conversation", "batch"):
        for key in store.scan_iter(f"{keys.base(0)}{kind}:*"):
            fields = {name.decode(): value for name, value in store.hgetall(key).items()}
            tenant = fields.get("tenant") or _tenant_of(store, key)
            found[tenant.decode()] += int(fields["kept"])
            name = key.decode().removeprefix(keys.base(0))
            assert expiring[name] in (0, int(fields["kept"])), name
    assert {each: n for each, n in found.items() if n} == ledger
    return sum(ledger.values())


def _tenant_of(store: Any, job_key: bytes) -> bytes:
    job_id = job_key.rpartition(b":")[2]
    for index in store.scan_iter(f"{keys.base(0)}{'jobs'}:*"):
        if store.zscore(index, job_id) is not None:
            tenant: bytes = index.rpartition(b":")[2]
            return tenant
    raise AssertionError(f"{job_id!r} is in no list")
