"""The audit trail: each change that an operator makes, in the log and in Redis."""

from __future__ import annotations

import logging
from typing import Any

from shared.store.interface import StoreError
from shared.store.operators import AuditRecord, AuditRecords
from shared.tenants.api_key import ApiKey

log = logging.getLogger("flotilla.audit")


class AuditTrail:
    """Of one gateway process."""

    def __init__(self, records: AuditRecords) -> None:
        self.records = records

    async def write(
        self, action: str, subject: str, operator: ApiKey, reason: str, **details: Any
    ) -> None:
        """Record what was done. The log has it even if Redis is away: it was done already."""
        record = AuditRecord(action, subject, operator.tenant, operator.id, reason, details)
        fields = {"tenant": operator.tenant, "key": operator.id, "reason": reason, **details}
        log.info("%s: %s", action, subject, extra=fields)
        try:
            await self.records.append(record)
        except StoreError as error:
            log.warning("%s: %s is not in Redis' audit trail: %s", action, subject, error)
