"""Files: whose they are, their quotas, and their end; and what maintenance deletes of a storage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.files.files import Files
from gateway.maintenance.file_sweep import FileSweep
from shared.job.errors import BadRequest, FileInUse, StorageUnavailable
from shared.storage import Segment
from shared.store import keys
from shared.store.files import (
    FileRecords,
    Purpose,
    StoredFile,
    file_blob,
    new_file_id,
)
from tests.store.conftest import Case

A, B = "a", "b"
LONG_AGO = 1_000_000_000


@pytest.fixture
def records(live: Case) -> FileRecords:
    return FileRecords(live.queue)


async def make_file(
    records: FileRecords, n_bytes: int = 10, *, expires_in_s: float | None = None
) -> StoredFile:
    """A file that is not stored yet."""
    file_id, now_s = new_file_id(), await records.documents.now_s()
    expires_at = None if expires_in_s is None else round(now_s + expires_in_s, 6)
    segment = Segment(file_blob(file_id), n_bytes)
    name, created_at = "a b\n.jsonl", round(now_s, 6)
    return StoredFile(file_id, A, name, Purpose.BATCH, created_at, expires_at, (segment,))


async def test_what_has_expired_is_not_shown_and_what_a_batch_reads_stays(
    records: FileRecords, live: Case
) -> None:
    old, new = [await make_file(records, expires_in_s=left_s) for left_s in (-1, 60)]
    for file in (old, new):
        await records.add(file)
    assert await records.list(A) == ([new], False)
    assert await records.list(A, purpose=Purpose.USER_DATA) == ([], False)
    with pytest.raises(BadRequest):
        await records.list(B, new.id)
    live.server.hset(keys.first("batch", "batch_1"), "status", "in_progress")
    known = await records.known([old.id, new_file_id(), "batch_1", "batch_2", "other"])
    assert known == {old.id, "batch_1", "other"}
    live.server.sadd(keys.first("document_users", old.id), "batch_1")
    with pytest.raises(FileInUse):
        await records.delete(A, old.id)
    assert await records.get(A, old.id) is None
    assert await records.get(A, old.id, held=True) == old
    assert await records.get(B, old.id, held=True) is None
    assert await records.delete(B, old.id) is None
    assert [await records.fleet_id(name) for name in ("one", "two")] == ["one", "one"]


# --- what maintenance deletes ---


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "files"


@pytest.fixture
async def files(alone: Case, folder: Path) -> Files:
    files = Files(alone.queue, str(folder))
    await files.ready()
    return files


def blobs(folder: Path, *, age: bool = False) -> set[str]:
    """What is stored; `age`: as if it had been so for long."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "fleets"]
    for path in found if age else ():
        os.utime(path, (LONG_AGO, LONG_AGO))
    return {path.relative_to(folder).as_posix() for path in found}


async def stored(files: Files, expires_in_s: float | None = None) -> StoredFile:
    file = await make_file(files.records, expires_in_s=expires_in_s)
    for segment in file.segments:
        await files.storage.write_bytes(segment.blob, b"x" * segment.bytes)
    await files.records.add(file)
    return file


async def test_what_has_expired_and_old_blobs_without_a_record_are_deleted(
    alone: Case, files: Files, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.maintenance.file_sweep._AT_ONCE", 2)
    sweep = FileSweep(alone.queue, str(folder))
    kept = [await stored(files), await stored(files, 60)]
    await stored(files, -1)
    used = await stored(files, -1)
    alone.server.sadd(keys.first("document_users", used.id), "batch_1")
    for number in range(5):
        await files.storage.write_bytes(f"files/file-{number}", b"x")
    alone.server.hset(keys.first("batch", "batch_1"), "status", "in_progress")
    for batch_id in ("batch_1", "batch_2"):
        await files.storage.write_bytes(f"batches/{batch_id}/output-1-1", b"x")
    (folder / "files" / "file-6#1").write_bytes(b"x")  # of a killed process
    before = blobs(folder)
    await sweep.sweep()
    assert len(before) - len(blobs(folder, age=True)) == 1, "others may be about to get a record"
    await sweep.sweep()
    named = {file.segments[0].blob for file in (*kept, used)}
    assert blobs(folder) == named | {"batches/batch_1/output-1-1"}
    assert await files.records.list(A) == (kept[::-1], False)


async def test_the_scan_for_orphans_goes_on_where_it_stopped(
    alone: Case, files: Files, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = FileSweep(alone.queue, str(folder))
    for number in range(6):
        await files.storage.write_bytes(f"files/file-{number}", b"x")
    blobs(folder, age=True)
    monkeypatch.setattr("gateway.maintenance.file_sweep._ROUND_S", -1)
    for left in (5, 4, 3):
        await sweep.sweep()
        assert len(blobs(folder)) == left
    monkeypatch.undo()
    await sweep.sweep()
    assert blobs(folder) == set()


async def test_another_fleets_storage_is_not_swept(
    alone: Case, files: Files, folder: Path, tmp_path: Path
) -> None:
    """Nor that of this one, when its Redis has lost everything."""
    await stored(files)
    before = blobs(folder, age=True)
    with pytest.raises(StorageUnavailable, match="not the one"):
        await FileSweep(alone.queue, str(tmp_path / "other")).sweep()
    alone.server.flushall()
    await FileSweep(alone.queue, str(folder)).sweep()
    assert blobs(folder) == before
