"""Files and uploads in Redis: who has them, their quotas, and their end."""

from __future__ import annotations

import pytest
from redis import Redis

from shared.files.stored_file import Purpose, Segment, StoredFile, file_blob, new_file_id
from shared.files.upload import (
    Upload,
    UploadStatus,
    new_part_id,
    new_upload_id,
    owners,
    part_blob,
)
from shared.job.errors import FileInUse, NotFound, StorageQuotaExceeded
from shared.store.redis import keys
from shared.store.redis.file_records import FileRecords, StorageQuota
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.upload_records import UploadRecords

A, B = "a", "b"
NO_QUOTA = StorageQuota()


@pytest.fixture
def records(queue: JobQueue) -> FileRecords:
    return FileRecords(queue)


@pytest.fixture
def uploads(queue: JobQueue) -> UploadRecords:
    return UploadRecords(queue)


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


async def make_upload(records: FileRecords, n_bytes: int = 30, expires_in_s: float = 60) -> Upload:
    now_s = round(await records.now_s(), 6)
    return Upload(
        new_upload_id(), A, "x", Purpose.USER_DATA, n_bytes, now_s, now_s + expires_in_s, None
    )


def stored(store: Redis, tenant: str = A) -> dict[bytes, int]:
    found = store.hgetall(f"{keys.base(0)}{keys.STORED}:{tenant}")
    return {name: int(value) for name, value in found.items()}


async def test_bytes_and_blobs_have_a_quota(records: FileRecords) -> None:
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
    assert await records.expired(10) == ([], []), "looked at again later"
    assert await records.get(A, file.id) is None
    assert await records.get(A, file.id, held=True) == file
    store.delete(keys.first(keys.FILE_USERS, file.id))
    assert await records.delete(A, file.id) == file


async def test_what_has_expired_is_found(
    records: FileRecords, uploads: UploadRecords, store: Redis
) -> None:
    old, new = await make_file(records, expires_in_s=-1), await make_file(records, expires_in_s=60)
    for file in (old, new):
        await records.add(file)
    upload = await make_upload(records, expires_in_s=-1)
    await uploads.add(upload, NO_QUOTA)
    lost = await make_file(records, expires_in_s=-1)
    await records.add(lost)
    store.delete(keys.first(keys.FILE, lost.id))
    assert await records.expired(10) == ([old], [upload.id])
    assert store.zcard(keys.first(keys.FILES_EXPIRING)) == 3
    assert await records.list(A) == ([new], False)
    assert await records.known([old.id, lost.id, upload.id]) == {old.id, upload.id}


async def test_an_upload_becomes_a_file(
    records: FileRecords, uploads: UploadRecords, store: Redis
) -> None:
    upload = await make_upload(records)
    await uploads.add(upload, NO_QUOTA)
    await uploads.add(upload, NO_QUOTA)
    assert await uploads.get(A, upload.id) == upload
    assert await uploads.get(B, upload.id) is None
    parts = [new_part_id() for _ in range(3)]
    for part in (*parts, parts[0]):
        await uploads.add_part(upload, part, 10, NO_QUOTA)
    assert stored(store) == {b"bytes": 30, b"blobs": 4}
    segments = tuple(await uploads.parts(upload, [parts[2], parts[0]]))
    file = (await make_file(records))._replace(id=upload.file_id, segments=segments)
    assert sorted(await uploads.complete(upload, file)) == sorted(parts)
    assert await uploads.complete(upload, file) is UploadStatus.COMPLETED
    assert await uploads.cancel(upload) is UploadStatus.COMPLETED
    assert await records.get(A, upload.file_id) == file
    assert stored(store) == {b"bytes": 20, b"blobs": 2}
    with pytest.raises(NotFound):
        await uploads.add_part(upload, new_part_id(), 1, NO_QUOTA)
    store.hset(keys.first(keys.UPLOAD, upload.id), "expires_us", 1)
    assert await uploads.expire(upload.id) == []
    await records.delete(A, file.id)
    assert not store.keys()


@pytest.mark.parametrize("by", ["cancel", "expire"])
async def test_an_upload_ends_without_a_file(
    records: FileRecords, uploads: UploadRecords, store: Redis, by: str
) -> None:
    upload = await make_upload(records)
    await uploads.add(upload, NO_QUOTA)
    await uploads.add_part(upload, "part_1", 10, NO_QUOTA)
    if by == "cancel":
        assert await uploads.cancel(upload) == ["part_1"]
        assert await uploads.cancel(upload) is UploadStatus.CANCELLED
        assert await uploads.complete(upload, await make_file(records)) is UploadStatus.CANCELLED
    else:
        assert await uploads.expire(upload.id) == [], "it has time left"
    store.hset(keys.first(keys.UPLOAD, upload.id), "expires_us", 1)
    assert await uploads.get(A, upload.id) is None
    assert await uploads.cancel(upload) is None
    assert await uploads.expire(upload.id) == (["part_1"] if by == "expire" else [])
    assert not store.keys()
    assert await uploads.expire(upload.id) == []


def test_a_blobs_name_shows_its_owners() -> None:
    upload_id = new_upload_id()
    file_id = upload_id.replace("upload_", "file-")
    assert owners(part_blob(upload_id, new_part_id())) == (upload_id, file_id)
    assert owners(file_blob(file_id)) == (file_id,)


async def test_a_fleet_has_one_id(records: FileRecords) -> None:
    assert await records.fleet_id() is None
    assert await records.fleet_id("one") == "one"
    assert await records.fleet_id("two") == "one"
    assert await records.fleet_id() == "one"
