"""Files in Redis: who has them, their quotas, and their end."""

from __future__ import annotations

import pytest
from redis import Redis

from shared.files.stored_file import Purpose, Segment, StoredFile, file_blob, new_file_id
from shared.job.errors import FileInUse, StorageQuotaExceeded
from shared.store.redis import keys
from shared.store.redis.file_records import FileRecords
from shared.store.redis.job_queue import JobQueue

A, B = "a", "b"


@pytest.fixture
def records(queue: JobQueue) -> FileRecords:
    return FileRecords(queue)


async def make_file(
    records: FileRecords, tenant: str = A, n_bytes: int = 10, *, expires_in_s: float | None = None
) -> StoredFile:
    file_id, now_s = new_file_id(), await records.now_s()
    return StoredFile(
        file_id,
        tenant,
        "a b\n.jsonl",
        Purpose.BATCH,
        round(now_s, 6),
        None if expires_in_s is None else round(now_s + expires_in_s, 6),
        (Segment(file_blob(file_id), n_bytes),),
    )


def stored(store: Redis, tenant: str = A) -> dict[bytes, int]:
    found = store.hgetall(f"{keys.base(0)}{keys.STORED}:{tenant}")
    return {name: int(value) for name, value in found.items()}


async def test_bytes_and_files_have_a_quota(records: FileRecords) -> None:
    await records.add(await make_file(records), max_bytes=15, max_files=2)
    with pytest.raises(StorageQuotaExceeded, match="stored bytes is used up: there are 10 now"):
        await records.add(await make_file(records), max_bytes=15)
    await records.add(await make_file(records, n_bytes=5), max_bytes=15, max_files=2)
    with pytest.raises(StorageQuotaExceeded, match="stored files is used up: there are 2 now"):
        await records.add(await make_file(records), max_files=2)
    await records.add(await make_file(records, B), max_bytes=10, max_files=1)


async def test_a_file_that_a_batch_reads_stays(records: FileRecords, store: Redis) -> None:
    file = await make_file(records, expires_in_s=-1)
    await records.add(file)
    store.sadd(keys.first(keys.FILE_USERS, file.id), "batch_1")
    with pytest.raises(FileInUse):
        await records.delete(A, file.id)
    assert await records.expired(10) == [], "looked at again later"
    assert await records.get(A, file.id) is None
    assert await records.get(A, file.id, held=True) == file
    store.delete(keys.first(keys.FILE_USERS, file.id))
    assert await records.delete(A, file.id) == file


async def test_what_has_expired_is_found(records: FileRecords, store: Redis) -> None:
    old, new = await make_file(records, expires_in_s=-1), await make_file(records, expires_in_s=60)
    for file in (old, new):
        await records.add(file)
    lost = await make_file(records, expires_in_s=-1)
    await records.add(lost)
    store.delete(keys.first(keys.FILE, lost.id))
    assert await records.expired(10) == [old]
    assert store.zcard(keys.first(keys.FILES_EXPIRING)) == 2
    assert await records.list(A) == ([new], False)
    assert await records.known([old.id, lost.id, "other"]) == {old.id, "other"}


async def test_a_fleet_has_one_id(records: FileRecords) -> None:
    assert await records.fleet_id() is None
    assert await records.fleet_id("one") == "one"
    assert await records.fleet_id("two") == "one"
    assert await records.fleet_id() == "one"
