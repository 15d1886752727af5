"""One run: batches side by side on a fleet that has faults until they have ended; then the sums."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from load_tests.faults.batches.batch_input import BatchInput, make_input
from load_tests.faults.batches.client import BatchClient
from load_tests.faults.batches.end_state import check_end_state
from load_tests.faults.batches.fault_schedule import plan
from load_tests.faults.batches.maintained_fleet import MaintainedFleet
from load_tests.faults.batches.storages import FolderStorage, RunStorage, S3Storage
from load_tests.faults.batches.sums import BatchOutcome, twice_generated
from load_tests.harness.errors import WrongAnswerError
from load_tests.harness.fleet import FleetShape
from load_tests.harness.session import Progress
from load_tests.oracle.undisturbed import Undisturbed
from shared.store import keys
from tests.harness.fleet import Stack

STORAGES = ("folder", "s3")
_WANTED = {"completed": 0.5, "completed too": 0.5, "cancelled": 0.2, "expired": 0.2}
"""The batches of a run by how they end, and the lines of each, in times of the run's lines."""
_ENDLESS = 8
"""Lines at the end of a batch that is cut off, so that it does not complete before."""
_ENDED = frozenset({"failed", "completed", "expired", "cancelled"})
_POLL_S = 0.2
_STUCK_S = 180.0
_PROGRESS_S = 10.0
_SUPERVISE_S = 0.1
_NEVER = {"auto_aof_rewrite_min_size": "1000gb"}
"""The append-only file keeps what deleted jobs have been (history.py)."""


@dataclass(frozen=True, slots=True)
class BatchRunShape:
    """How a run is made."""

    lines: int
    """Of the two batches that are completed, together; the others have some more."""
    storage: str = "folder"
    seed: str = "1"
    every_s: float = 3.0
    """Mean time between two faults."""
    faults: int | None = None
    """How many there are, all of them before a batch is cut off; None: until all have ended."""
    fleet: FleetShape = field(
        default_factory=lambda: FleetShape(
            workers=3,
            gateways=2,
            step_ms=25.0,
            lease_s=3.0,
            max_attempts=20,
            appendfsync="always",
            redis=_NEVER,
        )
    )


@dataclass(slots=True)
class BatchRunResult:
    """What a run found."""

    shape: BatchRunShape
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: list[BatchOutcome] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    """How many owners each batch has had, one after the other."""
    seconds: float = 0.0
    """From the first batch's creation to the last one's end."""
    ends: int = 0
    """How often a job came to its end with an answer."""
    decoded_again: int = 0
    """Tokens that were generated, and are in no output."""
    unrecorded: int = 0
    """Blobs that owners left that were killed before they could note them."""
    failures: list[str] = field(default_factory=list)
    """What must not be, in words."""


class BatchFaultRun:
    """Plays one run; `play` once."""

    def __init__(self, folder: Path, shape: BatchRunShape, progress: Progress) -> None:
        self._folder = folder
        self._shape = shape
        self._progress = progress
        self._result = BatchRunResult(shape)
        self._open: dict[str, str] = {}
        """The batches that have not ended: how they should end."""
        self._done: dict[str, int] = {}
        """Lines with a result, by batch."""

    async def play(self) -> BatchRunResult:
        """Run. Raises ProcessError if the fleet can't be started, or does not come back."""
        self._folder.mkdir(parents=True)
        inputs = await self._inputs()
        self._progress("the right answers are known")
        stack = Stack("", self._folder, fork=False)
        try:
            storage = self._storage(stack)
            variables = {**storage.environment, "TMPDIR": str(self._folder)}
            with mock.patch.dict(os.environ, variables):
                shape = self._shape.fleet
                fleet = await asyncio.to_thread(
                    MaintainedFleet, self._folder / "fleet", shape, storage
                )
                try:
                    await self._play(fleet, inputs)
                finally:
                    await asyncio.to_thread(fleet.close)
        finally:
            await asyncio.to_thread(stack.close)
        return self._result

    async def _inputs(self) -> Mapping[str, BatchInput]:
        undisturbed = Undisturbed()
        await undisturbed.start()
        try:
            return {
                wanted: await make_input(
                    undisturbed,
                    int(share * self._shape.lines),
                    f"{self._shape.seed} {wanted}",
                    0 if wanted.startswith("completed") else _ENDLESS,
                )
                for wanted, share in _WANTED.items()
            }
        finally:
            undisturbed.close()

    def _storage(self, stack: Stack) -> RunStorage:
        if self._shape.storage == "s3":
            return S3Storage(stack)
        return FolderStorage(self._folder / "files")

    async def _play(self, fleet: MaintainedFleet, inputs: Mapping[str, BatchInput]) -> None:
        client, result = BatchClient(fleet.fleet.urls), self._result
        began = time.monotonic()
        batches = {wanted: await client.create(each.data) for wanted, each in inputs.items()}
        ids = {wanted: str(batch["id"]) for wanted, batch in batches.items()}
        self._open = {batch_id: wanted for wanted, batch_id in ids.items()}
        tasks = [
            asyncio.create_task(self._inject(fleet, list(ids.values()))),
            asyncio.create_task(_supervise(fleet)),
        ]
        try:
            await self._follow(fleet, client, tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        result.seconds = time.monotonic() - began
        for wanted, batch_id in ids.items():
            batch = await client.get(batch_id)
            result.outcomes.append(
                BatchOutcome(
                    inputs[wanted],
                    wanted.partition(" ")[0],
                    batch,
                    await client.lines(batch["output_file_id"]),
                    await client.lines(batch["error_file_id"]),
                )
            )
        await client.close()
        await self._check(fleet, list(ids.values()))

    async def _inject(self, fleet: MaintainedFleet, ids: Sequence[str]) -> None:
        """Inject faults until cancelled; those that last some time overlap with others."""
        async with asyncio.TaskGroup() as group:
            for n, planned in enumerate(plan(self._shape.seed, self._shape.every_s)):
                if n == self._shape.faults:
                    break
                await asyncio.sleep(planned.after_s)
                group.create_task(fleet.inject(planned, [i for i in ids if i in self._open] or ids))
                self._result.faults[planned.fault] += 1

    async def _follow(
        self, fleet: MaintainedFleet, client: BatchClient, tasks: Sequence[asyncio.Task[None]]
    ) -> None:
        """Wait until all have ended; end some of them early. Raises WrongAnswerError."""
        advanced_at = told_at = time.monotonic()
        while self._open:
            await asyncio.sleep(_POLL_S)
            for task in tasks:
                if task.done():
                    task.result()
            now = time.monotonic()
            for batch_id in list(self._open):
                if await self._look(fleet, client, batch_id):
                    advanced_at = now
            if now > told_at + _PROGRESS_S:
                told_at = now
                done = f"{sum(self._done.values())} lines have a result"
                self._progress(f"{done}, {self._result.faults.total()} faults")
            if now > advanced_at + _STUCK_S:
                raise WrongAnswerError(f"nothing advances: {self._open}, {self._done}")

    async def _look(self, fleet: MaintainedFleet, client: BatchClient, batch_id: str) -> bool:
        """Whether a batch has advanced."""
        batch, before = await client.get(batch_id), self._done.get(batch_id, 0)
        counts, status = batch["request_counts"], batch["status"]
        done = counts["completed"] + counts["failed"]
        if done < before:
            self._result.failures.append(f"{batch_id}: {before} lines had a result, now {done}")
        self._done[batch_id] = done
        if status in _ENDED:
            del self._open[batch_id]
        elif (
            status == "in_progress"
            and done > counts["total"] / 3
            and self._result.faults.total() >= (self._shape.faults or 0)
        ):
            if self._open[batch_id] == "cancelled":
                await client.cancel(batch_id)
            elif self._open[batch_id] == "expired":
                await _expire_now(fleet, batch_id)
        return bool(done > before or status in _ENDED)

    async def _check(self, fleet: MaintainedFleet, ids: Sequence[str]) -> None:
        result = self._result
        for outcome in result.outcomes:
            head = f"{outcome.wanted} ({outcome.batch['id']})"
            result.failures += [f"{head}: {line}" for line in outcome.failures()]
        found = await check_end_state(fleet, ids)
        result.owners, result.unrecorded = found.owners, found.unrecorded
        result.ends = found.ends.total()
        usage = [each.batch["usage"]["output_tokens"] for each in result.outcomes]
        result.decoded_again = fleet.fleet.generated_tokens() - sum(usage)
        result.failures += [
            *found.failures,
            *twice_generated(found.ends, result.outcomes),
            *fleet.fleet.unexpected,
        ]


async def _supervise(fleet: MaintainedFleet) -> None:
    while True:
        fleet.supervise()
        await asyncio.sleep(_SUPERVISE_S)


async def _expire_now(fleet: MaintainedFleet, batch_id: str) -> None:
    """Make its window end now; a client can't ask for one that is so short."""
    with contextlib.suppress(Exception):  # Redis may be away: at the next look
        record = keys.first("batch", batch_id)
        await asyncio.to_thread(fleet.fleet.client.hset, record, "window_s", "1")
