"""One batch on its way from `validating` to its end, worked on by its owner."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Self

from gateway.batches.batch_context import BatchContext
from gateway.batches.input_check import InputCheck
from gateway.batches.line_jobs import delete_jobs
from gateway.batches.line_result import CANCELLED, EXPIRED, CutOff
from gateway.batches.owner import Owner
from gateway.batches.window import NOTHING_NEW, Share, Window
from shared.batches.batch import BatchStatus, LineError, file_id_of
from shared.job.errors import BlobMissing
from shared.store.batch_records import Change, OwnedBatch, Which, pack_errors
from shared.store.files import Purpose, StoredFile, total_bytes

_NOTHING: Mapping[str, str] = {}
_IDLE_S = 0.05
_SMALL_BYTES = 4 << 20
_OUTPUT_TTL_S = 30 * 86_400.0


class BatchRun:
    """Methods raise StoreError, StorageUnavailable, and Fenced; the run is given up then, and made
    again from what Redis has."""

    def __init__(
        self, context: BatchContext, owner: Owner, owned: OwnedBatch, file: StoredFile | None
    ) -> None:
        self._context = context
        self._owner = owner
        self._owned = owned
        self._file = file
        self._check: InputCheck | None = None
        self._window: Window | None = None
        self._cut_off: CutOff | None = None

    @classmethod
    async def of(cls, context: BatchContext, batch_id: str) -> Self | None:
        """Own a batch; None if another process does."""
        found = await Owner.of(context.records, batch_id)
        if found is None:
            return None
        owner, owned = found
        await delete_jobs(context, owned.ended_jobs)
        file = await context.files.records.get(
            owned.batch.tenant, owned.batch.input_file_id, held=True
        )
        return cls(context, owner, owned, file)

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return self._owner.status.ended

    @property
    def model(self) -> str:
        """The model of all its lines; empty: several, or not known."""
        return self._owner.batch.model

    @property
    def tenant(self) -> str:
        """Whose batch it is."""
        return self._owner.batch.tenant

    @property
    def to_check(self) -> bool:
        """Whether its input is not checked yet."""
        return self._owner.status is BatchStatus.VALIDATING

    @property
    def is_small(self) -> bool:
        """Whether its input is checked in a moment, and with little memory."""
        return self._file is None or total_bytes(self._file.segments) <= _SMALL_BYTES

    @property
    def is_checking(self) -> bool:
        """Whether its input is being checked."""
        return self._check is not None

    async def advance(
        self,
        until: float,
        share: Callable[[BatchRun], Share],
        may_check: Callable[[BatchRun], bool],
    ) -> None:
        """Work on it until then, by the monotonic clock. Raises BlobMissing if its input is lost.

        `share`: what it may have in flight now. `may_check`: whether its input may be checked now.
        """
        while not self.ended and time.monotonic() < until:
            await self._owner.renew()
            if (self.to_check and not may_check(self)) or not await self._step(share(self)):
                await asyncio.sleep(_IDLE_S)

    async def fail_damaged(self, why: str) -> None:
        """End it where it stands: its input can't be read any more."""
        if self._window is not None:
            await self._window.cut_off(CANCELLED)
        error = LineError("file_damaged", why, None)
        await self._end(BatchStatus.FAILED, {"errors": pack_errors([error])})

    async def _step(self, share: Share) -> bool:
        """Do what can be done now; False if there was nothing."""
        batch, status = self._owner.batch, self._owner.status
        is_over = self._context.fleet.now_s() > batch.expires_at
        if status is BatchStatus.FINALIZING:
            return await self._end(BatchStatus.COMPLETED)
        if status is BatchStatus.CANCELLING:
            return await self._end_early(BatchStatus.CANCELLED, CANCELLED)
        if is_over:
            return await self._end_early(BatchStatus.EXPIRED, EXPIRED)
        if status is BatchStatus.VALIDATING:
            return await self._go_on_checking()
        window = self._open_window()
        did = await window.advance(share)
        if window.is_complete:
            await self._owner.change(Change(BatchStatus.FINALIZING))
        return did

    async def _go_on_checking(self) -> bool:
        context, owner = self._context, self._owner
        if self._file is None:
            raise BlobMissing("The input file is not there any more.")
        if self._check is None:
            most, is_known = context.most_line_bytes, self._is_known
            self._check = InputCheck(owner.batch, self._file, context.files.storage, most, is_known)
        check = self._check
        await check.go_on()
        await asyncio.sleep(0)  # other batches
        if not check.complete:
            return True
        if check.errors:
            return await self._fail(check.errors)
        model = next(iter(check.models)) if len(check.models) == 1 else None
        found = {"total": check.total} | ({"model": model} if model else {})
        owner.batch = owner.batch._replace(model=model or "", total=check.total)
        await owner.change(Change(BatchStatus.IN_PROGRESS, set=found))
        self._check = None
        return True

    async def _fail(self, errors: list[LineError]) -> bool:
        await self._owner.change(Change(BatchStatus.FAILED, set={"errors": pack_errors(errors)}))
        return True

    def _is_known(self, model: str) -> bool:
        """Whether lines may name this model. Where no model is known, all of them may."""
        fleet = self._context.fleet
        return not fleet.models or fleet.names.resolve(model, "", 0.5) is not None

    def _open_window(self) -> Window:
        if self._window is None:
            if self._file is None:
                raise BlobMissing("The input file is not there any more.")
            self._window = Window(self._context, self._owner, self._owned, self._file)
        return self._window

    async def _end_early(self, status: BatchStatus, why: CutOff) -> bool:
        """Give up all lines that have not ended, and end."""
        if self._owner.batch.total == 0:
            return await self._end(status)
        window = self._open_window()
        if self._cut_off is None:
            await window.cut_off(why)
            self._cut_off = why
        if not window.is_empty:
            return await window.advance(NOTHING_NEW)
        if await window.cut_off_next(why):
            return True
        return await self._end(status)

    async def _end(self, status: BatchStatus, further: Mapping[str, str] = _NOTHING) -> bool:
        """Make files of the output and the errors, and end. `further`: fields to be set."""
        output, errors = await self._file_of("output"), await self._file_of("errors")
        found = {"output_file_id": output, "error_file_id": errors}
        set_fields = {name: value for name, value in found.items() if value} | dict(further)
        await self._owner.change(Change(status, set=set_fields))
        return True

    async def _file_of(self, which: Which) -> str:
        """The id of the file of what was written; empty if nothing was."""
        context, batch = self._context, self._owner.batch
        segments = await context.records.segments(batch.id, which)
        if not segments:
            return ""
        file_id = file_id_of(batch.id, which)
        now = context.fleet.now_s()
        file = StoredFile(
            id=file_id,
            tenant=batch.tenant,
            filename=f"{batch.id}_{which}.jsonl",
            purpose=Purpose.BATCH_OUTPUT,
            created_at=now,
            expires_at=now + (batch.output_ttl_s or _OUTPUT_TTL_S),
            segments=segments,
        )
        await context.files.records.add(file)
        return file_id
