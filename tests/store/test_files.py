"""Files: whose they are, their quotas, and their end."""

from __future__ import annotations

import pytest
from redis import Redis

from shared.job.errors import BadRequest, FileInUse, StorageQuotaExceeded
from shared.storage import Segment
from shared.store import keys
from shared.store.files import (
    FileRecords,
    Purpose,
    StorageQuota,
    StoredFile,
    file_blob,
    new_file_id,
)
from shared.store.queue import Queue

A, B = "a", "b"


@pytest.fixture
def records(queue: Queue) -> FileRecords:
    return FileRecords(queue)


async def make_file(
    records: FileRecords, tenant: str = A, n_bytes: int = 10, *, expires_in_s: float | None = None
) -> StoredFile:
    """A file that is not stored yet."""
    file_id, now_s = new_file_id(), await records.documents.now_s()
    return StoredFile(
        file_id,
        tenant,
        "a b\n.jsonl",
        Purpose.BATCH,
        round(now_s, 6),
        None if expires_in_s is None else round(now_s + expires_in_s, 6),
        (Segment(file_blob(file_id), n_bytes),),
    )


async def test_bytes_and_files_have_a_quota(records: FileRecords) -> None:
    quota = StorageQuota(15, 2)
    await records.add(await make_file(records), quota)
    await records.check_room(A, quota)
    with pytest.raises(StorageQuotaExceeded, match="stored bytes is used up: there are 10 now"):
        await records.add(await make_file(records), quota)
    await records.add(await make_file(records, n_bytes=5), quota)
    with pytest.raises(StorageQuotaExceeded, match="stored files is used up: there are 2 now"):
        await records.add(await make_file(records), StorageQuota(files=2))
    for full in (StorageQuota(bytes=15), StorageQuota(files=2)):
        with pytest.raises(StorageQuotaExceeded):
            await records.check_room(A, full)


async def test_a_file_that_a_batch_reads_stays(records: FileRecords, server: Redis) -> None:
    file = await make_file(records, expires_in_s=-1)
    await records.add(file)
    server.sadd(keys.first("document_users", file.id), "batch_1")
    with pytest.raises(FileInUse):
        await records.delete(A, file.id)
    assert await records.get(A, file.id) is None
    assert await records.get(A, file.id, held=True) == file
    assert await records.get(B, file.id, held=True) is None
    assert await records.delete(B, file.id) is None


async def test_what_has_expired_is_not_shown(records: FileRecords, server: Redis) -> None:
    old, new = await make_file(records, expires_in_s=-1), await make_file(records, expires_in_s=60)
    for file in (old, new):
        await records.add(file)
    assert await records.list(A) == ([new], False)
    assert await records.list(A, purpose=Purpose.USER_DATA) == ([], False)
    with pytest.raises(BadRequest):
        await records.list(B, new.id)
    server.hset(keys.first(keys.BATCH, "batch_1"), "status", "in_progress")
    known = await records.known([old.id, new_file_id(), "batch_1", "batch_2", "other"])
    assert known == {old.id, "batch_1", "other"}


async def test_a_fleet_has_one_id(records: FileRecords) -> None:
    assert await records.fleet_id() is None
    assert await records.fleet_id("one") == "one"
    assert await records.fleet_id("two") == "one"
    assert await records.fleet_id() == "one"
