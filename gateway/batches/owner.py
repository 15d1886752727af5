"""The ownership of a batch: one process works on it at a time, and what it changes is fenced."""

from __future__ import annotations

import secrets
import time

from shared.batches.batch import BatchStatus
from shared.store.batch_records import BatchRecords, Change, OwnedBatch
from shared.store.queue import Fenced

LOCK_S = 5.0
"""An owner that does not renew its lock for so long may be replaced."""
_RENEW_S = 1.0
_PROCESS = secrets.token_hex(8)


class Owner:
    """This process as the owner of one batch.

    After an error nobody knows what was changed: the owner is given up then, and the batch owned
    and read again, with another epoch. Methods raise StoreError, and Fenced if another process owns
    the batch.
    """

    def __init__(self, records: BatchRecords, owned: OwnedBatch) -> None:
        self.batch = owned.batch
        self.epoch = owned.epoch
        self.status = owned.batch.status
        self._records = records
        self._step = owned.step
        self._renewed_at = time.monotonic()

    @classmethod
    async def of(cls, records: BatchRecords, batch_id: str) -> tuple[Owner, OwnedBatch] | None:
        """Own a batch; None if another process does, or it is not open."""
        owns = await records.own(batch_id, _PROCESS, LOCK_S)
        if owns is None:
            return None
        epoch, step = owns
        await records.fence(batch_id, epoch)
        owned = await records.read(batch_id, epoch, step)
        return None if owned is None else (cls(records, owned), owned)

    async def renew(self) -> None:
        """Stay the owner, once a second; also reads whether the batch is to be cancelled."""
        now = time.monotonic()
        if now - self._renewed_at < _RENEW_S:
            return
        owns = await self._records.own(self.batch.id, _PROCESS, LOCK_S, self.epoch)
        if owns != (self.epoch, self._step):
            raise Fenced(f"another process owns {self.batch.id}")
        self._renewed_at = now
        found = await self._records.get(self.batch.tenant, self.batch.id)
        if found is None:
            raise Fenced(f"{self.batch.id} is gone")
        self.batch, self.status = found, found.status

    @property
    def next_step(self) -> int:
        """The number of the next change."""
        return self._step + 1

    async def change(self, change: Change) -> BatchStatus:
        """Change the batch; returns its status afterwards."""
        self._step += 1
        self.status = await self._records.change(self.batch.id, self.epoch, self._step, change)
        return self.status
