"""Reads the lines of a batch's input, from any place on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from shared.storage import Segment, Storage

_BOM = b"\xef\xbb\xbf"
_AT_ONCE = 512
"""Lines, at most: a chunk may have as many as half its bytes."""


class InputLine(NamedTuple):
    """A line that is not blank."""

    number: int
    """From 1 on; blank lines count."""
    offset: int
    length: int
    """Bytes, without those that end the line."""
    data: bytes
    """Empty if it is longer than allowed."""


async def input_lines(
    storage: Storage,
    segments: Sequence[Segment],
    most_bytes: int,
    number: int = 1,
    offset: int = 0,
) -> AsyncIterator[list[InputLine]]:
    """All lines from the one with this number at this offset on, some at a time.

    `most_bytes`: of one line. Raises StorageUnavailable.
    """
    begun: list[bytes] = []  # of a line that goes on in the next chunk
    size, blank = 0, True
    async for chunk in storage.read(segments, offset):
        first, *rest = chunk.split(b"\n")
        blank = blank and not (first if size else _without_mark(offset, first)).strip()
        size += len(first)
        begun.append(first)
        if size > most_bytes:
            begun.clear()
        if not rest:
            continue
        found = _lines(number, offset, size, begun, blank)
        offset += size + 1
        number += 1
        for data in rest[:-1]:
            size = len(data)
            if data.strip():
                kept = data if size <= most_bytes else b""
                found.append(InputLine(number, offset, size, kept))
                if len(found) >= _AT_ONCE:
                    yield found
                    found = []
            offset += size + 1
            number += 1
        size, blank = len(rest[-1]), not rest[-1].strip()
        begun = [rest[-1]] if size <= most_bytes else []
        yield found
    if last := _lines(number, offset, size, begun, blank):
        yield last


def _lines(
    number: int, offset: int, size: int, parts: Sequence[bytes], blank: bool
) -> list[InputLine]:
    """A line that began in an earlier chunk, or at the beginning; empty if it is blank.

    `parts`: none if it is longer than allowed; `blank`: whether it is then.
    """
    data = _without_mark(offset, b"".join(parts))
    is_there = data.strip() if parts else not blank
    return [InputLine(number, offset, size, data)] if is_there else []


def _without_mark(offset: int, data: bytes) -> bytes:
    return data.removeprefix(_BOM) if offset == 0 else data


async def line_at(storage: Storage, segments: Sequence[Segment], offset: int, length: int) -> bytes:
    """One line again. Raises StorageUnavailable."""
    data = b"".join([part async for part in storage.read(segments, offset, offset + length)])
    return _without_mark(offset, data)
