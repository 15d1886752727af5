"""Works on all open batches, a short time at a time: the task `batches` of maintenance."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

from gateway.batches.batch_context import BatchContext
from gateway.batches.batch_run import BatchRun
from gateway.batches.window import MOST_BYTES, Share
from shared.job.errors import BlobMissing, StorageUnavailable
from shared.platform.logs import RareWarning
from shared.platform.tasks import run_together
from shared.store.errors import StoreError
from shared.store.queue import Fenced

log = logging.getLogger("flotilla.batches")

SLICE_S = 1.8
"""How long one call works, if there is something to do."""
_REFRESH_S = 2.0
_LEAST_LINES = 16
_FURTHER_LINES = 256
"""In flight, beside twice the slots: what workers take while lines are read and written."""
_AGAIN_S = 5.0
"""After an error, before a batch is tried again."""


class BatchWork:
    """The batches that this process owns. What it keeps of them only saves reading it again."""

    def __init__(self, context: BatchContext) -> None:
        self._context = context
        self._runs: dict[str, BatchRun] = {}
        self._being_advanced: dict[str, BatchRun] = {}
        self._again_at: dict[str, float] = {}
        self._check_began_at: dict[str, float] = {}  # of each tenant
        self._refreshed_at = float("-inf")
        self._warn = RareWarning(log)

    async def work(self) -> None:
        """Own open batches that nobody owns, and advance all. Raises StoreError."""
        ids = await self._context.records.open_batches()
        self._runs = {batch_id: run for batch_id, run in self._runs.items() if batch_id in ids}
        self._again_at = {each: at for each, at in self._again_at.items() if each in ids}
        if not ids:
            self._check_began_at.clear()
            return
        until = time.monotonic() + SLICE_S
        await self._context.health.look()
        if time.monotonic() > self._refreshed_at + _REFRESH_S:
            await self._context.fleet.refresh()
            self._refreshed_at = time.monotonic()
        await run_together(*(self._advance(batch_id, until) for batch_id in ids))

    async def _advance(self, batch_id: str, until: float) -> None:
        if time.monotonic() < self._again_at.get(batch_id, 0):
            return
        # An error, or a cancellation, leaves open what was changed: the batch is read again then.
        run = self._runs.pop(batch_id, None)
        try:
            run = run or await BatchRun.of(self._context, batch_id)
            if run is None:
                return
            self._being_advanced[batch_id] = run
            try:
                await run.advance(until, self._share, self._may_check)
            except BlobMissing as error:
                await self._context.files.ready(just_now=True)  # else nothing is there now
                log.warning("%s fails: %s", batch_id, error)
                await run.fail_damaged(str(error))
            if run.ended:
                log.info("%s has ended", batch_id)
            else:
                self._runs[batch_id] = run
        except Fenced as error:
            log.info("%s", error)
        except (StoreError, StorageUnavailable) as error:
            self._warn("%s pauses: %s", batch_id, error)
        except Exception:
            log.exception("%s pauses", batch_id)
            self._again_at[batch_id] = time.monotonic() + _AGAIN_S
        finally:
            self._being_advanced.pop(batch_id, None)

    def _may_check(self, run: BatchRun) -> bool:
        """Whether a batch's input may be checked now: one large one at a time, as that takes
        memory, and one small one beside it. Next is the tenant whose check began longest ago."""
        rivals = (each for each in self._all() if each.to_check and each.is_small == run.is_small)
        began_at = self._check_began_at
        chosen = min(
            rivals, key=lambda each: (not each.is_checking, began_at.get(each.tenant, 0.0))
        )
        if chosen is run and not run.is_checking:
            began_at[run.tenant] = time.monotonic()
        return chosen is run

    def _all(self) -> Iterable[BatchRun]:
        return chain(self._being_advanced.values(), self._runs.values())

    def _share(self, run: BatchRun) -> Share:
        """What a batch may have in flight: its tenant's share of twice the slots and some, and of
        bytes, over the tenant's batches."""
        fleet, names, all_runs = self._context.fleet, self._context.fleet.names, list(self._all())
        model = names.resolve(run.model, "", 0.5) if run.model else None
        workers = fleet.workers if model is None else fleet.workers_of(model.pool)
        slots = sum(worker.slots for worker in workers if worker.state.serving)
        parts = _parts(run, [other for other in all_runs if other.model == run.model])
        lines = (2 * slots + _FURTHER_LINES) // parts
        return Share(max(_LEAST_LINES, lines), MOST_BYTES // _parts(run, all_runs))


def _parts(run: BatchRun, beside: Sequence[BatchRun]) -> int:
    """How many parts as large as a batch's share of these all of them are: tenants first."""
    tenants = Counter(other.tenant for other in beside)
    return max(1, len(tenants) * tenants[run.tenant])
