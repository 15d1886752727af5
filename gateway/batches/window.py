"""The lines of a batch that are in flight, from when they are read to when their result is stored.

Redis knows where they are, so that another process can go on from any moment:

1. `reserve`: lines are read, and noted in the batch's record;
2. `submit`: each is taken from the limits of the batch's key, and becomes a job, whose id is made
   of the batch, the line and its try, so that a line that is submitted twice is one job;
3. `collect`: jobs that have ended become lines of the output, or of the errors, or are tried again;
4. `commit`: these are written to the storage, then noted in the record, then the jobs are deleted.

A line whose job is gone is submitted again. The next owner deletes the jobs of the last commit
again, as the owner before may have been killed in between.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from gateway.batches.batch_context import BatchContext
from gateway.batches.input_lines import InputLine, input_lines, line_at
from gateway.batches.line_jobs import LineJobs, delete_jobs
from gateway.batches.line_limits import LineLimits
from gateway.batches.line_result import CutOff, LineResult, given_up
from gateway.batches.owner import Owner
from gateway.batches.result_store import ResultStore
from shared.batches.batch import LineError
from shared.batches.line_check import parse_line
from shared.job.job import NewJob, checked_shard
from shared.store.batch_records import Change, LinePlace, OwnedBatch, pack_errors
from shared.store.files import StoredFile
from shared.tenants.rate_limits import TooMuch

_MOST_LINES = 8192
MOST_BYTES = 32 << 20
"""Of the lines of all batches of a process that are in flight."""
_LARGE_BYTES = 1 << 18
"""A larger line is not read before it is submitted, and submitted by itself."""
_AT_ONCE = 64
"""Lines that are submitted or collected in one call."""
_COMMIT_BYTES = 4 << 20
_COMMIT_S = 5.0
_POLL_RATIO = 10
"""Between two polls for ended jobs lies so many times what the first one took."""
_PATIENCE_S = 0.5
"""After which lines that were not taken are submitted again."""


class Share(NamedTuple):
    """What one batch may have in flight."""

    lines: int
    """Without those that have a result, which is not stored yet."""
    bytes: int


NOTHING_NEW = Share(0, 0)


class Window:
    """Methods raise StoreError, StorageUnavailable, and Fenced; the window is given up then."""

    def __init__(
        self, context: BatchContext, owner: Owner, owned: OwnedBatch, file: StoredFile
    ) -> None:
        self._context = context
        self._owner = owner
        self._file = file
        self._jobs = LineJobs(context, owner.batch)
        self._limits = LineLimits(context.queue, owner.batch)
        self._limit: LineError | None = None  # that lines wait for
        self._store = ResultStore(context, owner)
        self._cut_off: CutOff | None = None
        self._places = owned.lines
        self._bytes = sum(place.length for place in owned.lines.values())
        self._unsent: dict[int, bytes | None] = {}  # None: to be read again
        self._results: dict[int, LineResult] = {}
        self._result_bytes = 0
        self._committed_at = time.monotonic()
        self._tried_at = float("-inf")
        self._poll_at = 0.0
        self._lines = input_lines(
            context.files.storage,
            file.segments,
            _LARGE_BYTES,
            owned.next_line,
            owned.next_offset,
        )
        self._read: list[InputLine] = []  # but not reserved
        self._end_reached = False

    @property
    def is_empty(self) -> bool:
        """Whether no line is in flight."""
        return not self._places

    @property
    def is_complete(self) -> bool:
        """Whether every line's result is stored."""
        return self._end_reached and not self._read and not self._places

    async def advance(self, share: Share) -> bool:
        """Do what can be done now; False if there was nothing. `share`: to be in flight."""
        did = await self._collect()
        room = share.lines - len(self._places) + len(self._results)
        if room > 0 and self._bytes < share.bytes and len(self._places) < _MOST_LINES:
            did = await self._reserve(room) or did
        did = await self._submit() or did
        everything = len(self._results) == len(self._places)
        if self._results and (everything or self._is_due()):
            await self._commit()
            did = True
        return did

    # --- reserve ---

    async def _reserve(self, most: int) -> bool:
        lines = await self._take(min(most, _AT_ONCE))
        if not lines:
            return False
        places = {line.number: LinePlace(line.offset, line.length) for line in lines}
        await self._owner.change(Change(set=self._behind(lines[-1]), lines=places))
        self._places |= places
        self._bytes += sum(line.length for line in lines)
        self._unsent |= {line.number: line.data or None for line in lines}
        return True

    async def _take(self, most: int) -> list[InputLine]:
        """The next lines of the input, which are not reserved; empty at its end."""
        while not self._read and not self._end_reached:
            lines = await anext(self._lines, None)
            self._end_reached = lines is None
            self._read = lines or []
        taken, self._read = self._read[:most], self._read[most:]
        return taken

    @staticmethod
    def _behind(line: InputLine) -> dict[str, int]:
        return {"next_line": line.number + 1, "next_offset": line.offset + line.length + 1}

    # --- submit ---

    async def _submit(self) -> bool:
        if not self._unsent or time.monotonic() < self._tried_at + _PATIENCE_S:
            return False
        jobs: dict[tuple[int, int], list[tuple[int, NewJob]]] = {}
        sent, self._limit = False, None
        for number in list(islice(self._unsent, _AT_ONCE)):
            if self._limit:
                break
            self._unsent[number] = self._unsent.pop(number)  # behind the others, if it has to wait
            if self._places[number].length > _LARGE_BYTES:
                sent = await self._submit_large(number) or sent
                continue
            made = await self._made_of(number)
            if isinstance(made, LineResult):
                self._finish(made)
                sent = True
            elif made is not None:
                max_depth = self._context.max_depth(made.pool)
                jobs.setdefault((made.shard, max_depth), []).append((number, made))
        for (shard, max_depth), pairs in jobs.items():
            sent = await self._submit_to(shard, max_depth, pairs) or sent
        if not sent:  # no worker, or lanes or Redis are full, or a limit is reached
            self._tried_at = time.monotonic()
        await self._tell_limit()
        return sent

    async def _tell_limit(self) -> None:
        """Show in the batch which limit its lines wait for."""
        errors = (self._limit,) if self._limit else ()
        batch = self._owner.batch
        if [each.code for each in errors] != [each.code for each in batch.errors]:
            self._owner.batch = batch._replace(errors=errors)
            await self._owner.change(Change(set={"errors": pack_errors(errors)}))

    async def _submit_large(self, number: int) -> bool:
        """Submit a line that is not kept in memory if it has to wait."""
        async with self._context.large_line:
            made = await self._made_of(number)
            self._unsent[number] = None
            if isinstance(made, LineResult):
                self._finish(made)
                return True
            if made is None:
                return False
            depth = self._context.max_depth(made.pool)
            return await self._submit_to(made.shard, depth, [(number, made)])

    async def _made_of(self, number: int) -> NewJob | LineResult | None:
        """The job of a line that is not submitted, taken from all limits, or its result; None: it
        has to wait."""
        data, job_id = self._unsent[number], self._job_id(number)
        if data is None:
            place, segments = self._places[number], self._file.segments
            data = await line_at(self._context.files.storage, segments, place.offset, place.length)
            self._unsent[number] = data
        if self._cut_off is not None:
            return given_up(number, parse_line(data).custom_id, job_id, *self._cut_off)
        made = await self._jobs.new(number, job_id, data)
        if made is None or isinstance(made, LineResult):
            return made
        job, tokens = made
        taken = await self._limits.take(number, tokens, self._context.fleet.now_s())
        if isinstance(taken, TooMuch):
            code = "budget_exceeded" if taken.is_used_up else "rate_limit_exceeded"
            self._limit = LineError(code, f"Lines wait. {taken.message(tokens)}", None)
            return None
        return job._replace(reserved=taken)

    async def _submit_to(
        self, shard: int, max_depth: int, pairs: Sequence[tuple[int, NewJob]]
    ) -> bool:
        owner, jobs = (self._owner.batch.id, self._owner.epoch), [job for _, job in pairs]
        queue = self._context.queue
        replies = queue.parse_submit(jobs, await queue.submit(shard, jobs, max_depth, owner))
        taken = [n for (n, _), reply in zip(pairs, replies, strict=True) if isinstance(reply, int)]
        for number in taken:
            del self._unsent[number]
            self._limits.queued(number)
        return bool(taken)

    def _job_id(self, number: int) -> str:
        return self._jobs.id_of(number, self._places[number].tries)

    # --- collect ---

    async def _collect(self) -> bool:
        """Take the results of lines whose jobs have ended; False if none has."""
        began_at = time.monotonic()
        if began_at < self._poll_at:
            return False
        ended = await self._ended()
        now = time.monotonic()
        self._poll_at = now + _POLL_RATIO * (now - began_at)
        numbers = list(ended)
        for at in range(0, len(numbers), _AT_ONCE):
            some = numbers[at : at + _AT_ONCE]
            await self._take_results({number: ended[number] for number in some})
            if self._result_bytes >= _COMMIT_BYTES:  # the others after the next commit
                self._poll_at = 0.0
                break
        return bool(numbers)

    async def _ended(self) -> dict[int, str]:
        """The lines whose jobs have ended, and their jobs."""
        by_shard: dict[int, dict[str, int]] = {}
        for number in self._places:
            if number not in self._unsent and number not in self._results:
                job_id = self._job_id(number)
                by_shard.setdefault(checked_shard(job_id), {})[job_id] = number
        found: dict[int, str] = {}
        for shard, numbers in by_shard.items():
            ids = list(numbers)
            for at in range(0, len(ids), 512):
                states = await self._context.queue.ended(shard, ids[at : at + 512])
                for job_id, state in states.items():
                    if state == "gone":
                        self._unsent[numbers[job_id]] = None
                    else:
                        found[numbers[job_id]] = job_id
        return found

    async def _take_results(self, ended: dict[int, str]) -> None:
        tries: dict[int, LinePlace] = {}
        jobs = await self._context.queue.get(*ended.values())
        for number, job in zip(ended, jobs, strict=True):
            if self._result_bytes >= _COMMIT_BYTES:
                break
            if job is None:
                self._unsent[number] = None
                continue
            place = self._places[number]
            result = None
            if "custom_id" in job.metadata:  # else its record could not be read
                result = await self._jobs.result_of(number, job, place.tries, self._cut_off)
            if result is not None:
                self._finish(result)
            else:
                tries[number] = place._replace(tries=place.tries + 1)
        if tries:
            failed = [ended[number] for number in tries]
            await self._owner.change(Change(lines=tries, ended_jobs=failed))
            await delete_jobs(self._context, failed)
            self._places |= tries
            self._unsent |= dict.fromkeys(tries)

    def _finish(self, result: LineResult) -> None:
        self._results[result.number] = result
        self._result_bytes += len(result.data)
        self._unsent.pop(result.number, None)

    # --- commit ---

    def _is_due(self) -> bool:
        late = time.monotonic() > self._committed_at + _COMMIT_S
        full = len(self._results) * 2 >= _MOST_LINES
        return self._result_bytes >= _COMMIT_BYTES or full or late

    async def _commit(self) -> None:
        """Store all results, and forget their lines and jobs."""
        results, self._results, self._result_bytes = self._results, {}, 0
        jobs = [self._job_id(number) for number in results]
        await self._store.store(
            list(results.values()), Change(ended=list(results), ended_jobs=jobs)
        )
        for number in results:
            self._bytes -= self._places.pop(number).length
        self._committed_at = time.monotonic()
        await delete_jobs(self._context, jobs)

    # --- the end before the last line ---

    async def cut_off(self, why: CutOff) -> None:
        """Submit no more lines, and cancel those that run."""
        self._cut_off = why
        await self._limits.give_back(self._unsent)
        queue, tenant = self._context.queue, self._owner.batch.tenant
        running = [number for number in self._places if number not in self._unsent]
        for at in range(0, len(running), _AT_ONCE):
            ids = [self._job_id(number) for number in running[at : at + _AT_ONCE]]
            await queue.cancel(tenant, *ids)

    async def cut_off_next(self, why: CutOff) -> bool:
        """Give up lines that were never in flight; False if there are none any more."""
        results: list[LineResult] = []
        size, lines = 0, await self._take(_MOST_LINES)
        while lines and size < _COMMIT_BYTES:
            for line in lines:
                job_id = self._jobs.id_of(line.number, 0)
                custom_id = parse_line(await self._data_of(line)).custom_id
                result = given_up(line.number, custom_id, job_id, *why)
                results.append(result)
                size += len(result.data)
            last = lines[-1]
            lines = await self._take(_MOST_LINES) if size < _COMMIT_BYTES else []
        if results:
            await self._store.store(results, Change(set=self._behind(last)))
        return bool(results)

    async def _data_of(self, line: InputLine) -> bytes:
        if line.data:
            return line.data
        async with self._context.large_line:
            storage, segments = self._context.files.storage, self._file.segments
            return await line_at(storage, segments, line.offset, line.length)
