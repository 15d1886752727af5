"""What maintenance deletes: files that have expired, blobs that no record names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from redis import Redis

from gateway.files.files import Files
from gateway.maintenance.file_sweep import FileSweep
from shared.job.errors import StorageUnavailable
from shared.store import keys
from shared.store.files import StoredFile
from shared.store.queue import Queue
from tests.store.test_files import A, make_file

LONG_AGO = 1_000_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "files"


@pytest.fixture
def files(queue: Queue, folder: Path) -> Files:
    return Files(queue, str(folder))


@pytest.fixture
def sweep(queue: Queue, folder: Path) -> FileSweep:
    return FileSweep(queue, str(folder))


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


async def test_what_has_expired_is_deleted(
    files: Files, sweep: FileSweep, folder: Path, server: Redis
) -> None:
    kept = [await stored(files), await stored(files, 60)]
    await stored(files, -1)
    used = await stored(files, -1)
    server.sadd(keys.first("document_users", used.id), "batch_1")
    await sweep.sweep()
    assert blobs(folder) == {file.segments[0].blob for file in (*kept, used)}
    assert await files.records.list(A) == (kept[::-1], False)


async def test_old_blobs_without_a_record_are_deleted(
    files: Files,
    sweep: FileSweep,
    server: Redis,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.maintenance.file_sweep._AT_ONCE", 2)
    await files.ready()
    file = await stored(files)
    for number in range(5):
        await files.storage.write_bytes(f"files/file-{number}", b"x")
    server.hset(keys.first(keys.BATCH, "batch_1"), "status", "in_progress")
    for batch_id in ("batch_1", "batch_2"):
        await files.storage.write_bytes(f"batches/{batch_id}/output-1-1", b"x")
    (folder / "files" / "file-6#1").write_bytes(b"x")  # of a killed process
    before = blobs(folder)
    await sweep.sweep()
    assert blobs(folder, age=True) == before, "they may be about to get a record"
    await sweep.sweep()
    assert blobs(folder) == {file.segments[0].blob, "batches/batch_1/output-1-1"}


async def test_the_scan_for_orphans_goes_on_where_it_stopped(
    files: Files, sweep: FileSweep, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await files.ready()
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


async def test_blobs_of_another_fleet_stay(
    files: Files, sweep: FileSweep, folder: Path, server: Redis
) -> None:
    """Or those of this one, when its Redis has lost everything."""
    await files.ready()
    await stored(files)
    before = blobs(folder, age=True)
    server.flushall()
    await sweep.sweep()
    assert blobs(folder) == before


async def test_another_storage_is_not_swept(
    queue: Queue, files: Files, sweep: FileSweep, tmp_path: Path
) -> None:
    await files.ready()
    with pytest.raises(StorageUnavailable, match="not the one"):
        await FileSweep(queue, str(tmp_path / "other")).sweep()
    await sweep.sweep()
