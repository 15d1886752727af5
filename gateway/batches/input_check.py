"""Checks the whole input of a batch before any of its lines runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from hashlib import blake2b

from gateway.batches.input_lines import InputLine, input_lines
from gateway.http.body import SMALL_BYTES, in_thread
from shared.batches.batch import Batch, LineError
from shared.batches.line_check import MOST_ERRORS, MOST_LINES, BadLine, check_line
from shared.storage import Storage
from shared.store.files import StoredFile

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
        self._first: dict[bytes, int] = {}  # digest of an id -> the line that has it
        self._lines = input_lines(storage, file.segments, most_bytes)

    async def go_on(self) -> None:
        """Check another part. Raises StorageUnavailable and BlobMissing."""
        lines = await anext(self._lines, None)
        if lines is not None:
            await self._check_lines(lines)
        elif not self.total:
            self.errors.append(LineError("empty_file", "The file has no lines.", None))
        self.complete = lines is None or self._is_hopeless()

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
                self._check_id(custom_id, line.number)
            except BadLine as error:
                self.errors.append(error.at(line.number))
                continue
            if len(self.models) < 2:
                self.models.add(model)

    def _check_id(self, custom_id: str, number: int) -> None:
        """Raises BadLine if an earlier line has this id."""
        digest = blake2b(custom_id.encode(), digest_size=16).digest()
        first = self._first.setdefault(digest, number)
        if first != number:
            message = f"The `custom_id` {custom_id[:100]!r} of line {first} is there again."
            raise BadLine("duplicate_custom_id", message, "custom_id")


async def _in_steps(lines: Iterable[InputLine]) -> AsyncIterator[InputLine]:
    """The same; other work goes on after every few milliseconds."""
    until = time.monotonic() + _STEP_S
    for line in lines:
        yield line
        if time.monotonic() > until:
            await asyncio.sleep(0)
            until = time.monotonic() + _STEP_S
