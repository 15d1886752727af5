"""Where the results of a batch's lines go: to the storage, then into the batch's record."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.batches.batch_context import BatchContext
from gateway.batches.line_result import LineResult
from gateway.batches.owner import Owner
from shared.batches.batch import Usage
from shared.storage import Segment
from shared.store.batch_records import Change


class ResultStore:
    """Methods raise StoreError, StorageUnavailable, and Fenced."""

    def __init__(self, context: BatchContext, owner: Owner) -> None:
        self._files = context.files
        self._owner = owner

    async def store(self, results: Sequence[LineResult], change: Change) -> None:
        """Write results to the storage, and note them together with this change."""
        output = [each for each in results if each.is_output]
        errors = [each for each in results if not each.is_output]
        counts = {"completed": len(output), "failed": len(errors)}
        for name in Usage._fields:
            counts[name] = sum(getattr(each.usage, name) for each in output)
        # Before and after: what is written while the storage is away is somewhere else, and the
        # storage may be back a moment later.
        await self._files.ready(just_now=True)
        change = change._replace(
            add={name: count for name, count in counts.items() if count},
            output=await self._write("output", output),
            errors=await self._write("errors", errors),
        )
        await self._files.ready(just_now=True)
        await self._owner.change(change)

    async def _write(self, which: str, results: Sequence[LineResult]) -> list[Segment]:
        if not results:
            return []
        owner = self._owner
        # The step makes the name one that no other process, and no earlier try, has used.
        blob = f"batches/{owner.batch.id}/{which}-{owner.epoch}-{owner.next_step}"
        data = b"".join([each.data for each in results])
        await self._files.storage.write_bytes(blob, data)
        return [Segment(blob, len(data))]
