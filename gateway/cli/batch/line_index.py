"""Finds the line of a `custom_id` in a file of answers: an index on disk, beside the file."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

_CACHE_KIB = 64 << 10


class LineIndex:
    """The lines of a file by their `custom_id`. The memory does not grow with the file."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self._file = path.open("rb")
        self._database = database

    @classmethod
    @contextlib.contextmanager
    def of(cls, path: Path) -> Iterator[Self]:
        """Index a file; the index is deleted at the end of the context."""
        at = path.with_name(f"{path.name}.index")
        at.unlink(missing_ok=True)
        database = sqlite3.connect(at, isolation_level=None, check_same_thread=False)
        try:
            database.execute("PRAGMA journal_mode = OFF")
            database.execute("PRAGMA synchronous = OFF")
            database.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            database.execute("CREATE TABLE line (id TEXT PRIMARY KEY, start INTEGER) WITHOUT ROWID")
            database.execute("BEGIN")
            database.executemany("INSERT OR IGNORE INTO line VALUES (?, ?)", _rows(path))
            database.execute("COMMIT")
            index = cls(path, database)
            yield index
            index._file.close()
        finally:
            database.close()
            at.unlink(missing_ok=True)

    def __contains__(self, custom_id: str) -> bool:
        return self._start(custom_id) is not None

    def line(self, custom_id: str) -> bytes | None:
        """The line with this id."""
        start = self._start(custom_id)
        if start is None:
            return None
        self._file.seek(start)
        return self._file.readline()

    def _start(self, custom_id: str) -> int | None:
        found = self._database.execute("SELECT start FROM line WHERE id = ?", (custom_id,))
        row = found.fetchone()
        return None if row is None else int(row[0])


def _rows(path: Path) -> Iterator[tuple[str, int]]:
    start = 0
    with path.open("rb") as file:
        for line in file:
            yield json.loads(line)["custom_id"], start
            start += len(line)


def sort_lines(path: Path, custom_ids: Iterable[str]) -> None:
    """Bring the lines of a file into the order of these ids; the file is replaced at the end."""
    sorted_path = path.with_name(f"{path.name}.sorted")
    with LineIndex.of(path) as index, sorted_path.open("wb") as target:
        for custom_id in custom_ids:
            if (line := index.line(custom_id)) is not None:
                target.write(line)
    sorted_path.replace(path)
