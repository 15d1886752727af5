"""Checks the whole input of a batch before any of its lines runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial

from gateway.batches.duplicates import Duplicates, key
from gateway.batches.input_lines import InputLine, input_lines
from gateway.http.body import SMALL_BYTES, in_thread
from shared.batches.batch import Batch, LineError
from shared.batches.line_check import MOST_ERRORS, MOST_LINES, BadLine, check_line, parse_line
from shared.files.storage import Storage
from shared.files.stored_file import StoredFile

MOST_SUSPECTS = 10_000
"""More ids are not compared: the batch fails anyway."""
_STEP_S = 0.005


class InputCheck:
    """The check of one input, which goes on part by part; `complete` at its end."""

    def __init__(
        self,
        batch: Batch,
        file: StoredFile,
        storage: Storage,
        most_bytes: int,
        is_known: Callable[[str], bool],
    ) -> None:
        """`most_bytes`: of one line. `is_known`: whether a model of this name exists."""
        self.errors: list[LineError] = []
        self.total = 0
        """Lines so far."""
        self.models: set[str | None] = set()
        """The models that they name; None: one names none."""
        self.complete = False
        self._endpoint = batch.endpoint
        self._is_known = is_known
        self._most_bytes = most_bytes
        self._ids = Duplicates()
        self._parts: Iterator[set[int]] | None = None  # of the ids, when all lines were read
        self._suspects: set[int] = set()
        self._first: dict[str, int] = {}
        self._read = partial(input_lines, storage, file.segments, most_bytes)
        self._lines = self._read()
        self._check = self._check_lines

    async def go_on(self) -> None:
        """Check another part. Raises StorageUnavailable and BlobMissing."""
        if self._parts is not None:
            self._look_for_suspects(self._parts)
            return
        lines = await anext(self._lines, None)
        await self._check(lines or ())
        if self._is_hopeless() or (lines is None and self._check == self._compare):
            self.complete = True
        elif lines is None:
            if not self.total:
                self.errors.append(LineError("empty_file", "The file has no lines.", None))
            self._parts = self._ids.suspects()
            self.complete = bool(self.errors)

    def _look_for_suspects(self, parts: Iterator[set[int]]) -> None:
        found = next(parts, None)
        self._suspects |= found or set()
        if found is None or len(self._suspects) > MOST_SUSPECTS:
            self._ids, self._parts = Duplicates(), None
            self._check, self._lines = self._compare, self._read()
            self.complete = not self._suspects

    def _is_hopeless(self) -> bool:
        return len(self.errors) >= MOST_ERRORS or self.total > MOST_LINES

    async def _check_lines(self, lines: Iterable[InputLine]) -> None:
        async for line in _in_steps(lines):
            if self._is_hopeless():
                return
            self.total += 1
            try:
                if line.length > self._most_bytes:
                    raise BadLine(
                        "line_too_large", f"This line has more than {self._most_bytes} bytes."
                    )
                if self.total > MOST_LINES:
                    raise BadLine("too_many_lines", f"A file may have {MOST_LINES} lines at most.")
                check = partial(check_line, line.data, self._endpoint, self._is_known)
                custom_id, model = await in_thread(check) if line.length > SMALL_BYTES else check()
            except BadLine as error:
                self.errors.append(error.at(line.number))
                continue
            self._ids.add(custom_id)
            if len(self.models) < 2:
                self.models.add(model)

    async def _compare(self, lines: Iterable[InputLine]) -> None:
        """Whether lines have the id of an earlier one, if its hash is that of another one."""
        async for line in _in_steps(lines):
            custom_id = parse_line(line.data).custom_id
            if key(custom_id) not in self._suspects:
                continue
            first = self._first.setdefault(custom_id, line.number)
            if first != line.number and len(self.errors) < MOST_ERRORS:
                message = f"The `custom_id` {custom_id[:100]!r} of line {first} is there again."
                error = LineError("duplicate_custom_id", message, line.number, "custom_id")
                self.errors.append(error)


async def _in_steps(lines: Iterable[InputLine]) -> AsyncIterator[InputLine]:
    """The same; other work goes on after every few milliseconds."""
    until = time.monotonic() + _STEP_S
    for line in lines:
        yield line
        if time.monotonic() > until:
            await asyncio.sleep(0)
            until = time.monotonic() + _STEP_S
