"""Uploads in Redis: files that arrive in parts. The file is made of them when it is complete."""

from __future__ import annotations

from collections.abc import Sequence

from shared.files.stored_file import Purpose, Segment, StoredFile
from shared.files.upload import MAX_PARTS, Upload, UploadStatus, part_blob
from shared.job.errors import BadRequest, NotFound
from shared.store.redis import keys
from shared.store.redis.file_records import (
    SHARD,
    StorageQuota,
    check_quota,
    micros_of,
    record_of,
    seconds_of,
)
from shared.store.redis.job_queue import JobQueue

_FIELDS = (
    "tenant", "filename", "purpose", "bytes", "created_us", "expires_us", "file_ttl_s", "status",
)  # fmt: skip


class UploadRecords:
    """The uploads of all tenants. Methods raise StoreError."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._redis = queue.servers.of(SHARD)

    async def add(self, upload: Upload, quota: StorageQuota) -> None:
        """Begin an upload. Raises StorageQuotaExceeded if its file would be too much."""
        values = (
            upload.tenant, upload.filename, upload.purpose, upload.bytes,
            micros_of(upload.created_at), micros_of(upload.expires_at),
            "" if upload.file_ttl_s is None else upload.file_ttl_s, upload.status,
        )  # fmt: skip
        fields = [word for pair in zip(_FIELDS, values, strict=True) for word in pair]
        arguments = (
            upload.id, upload.tenant, micros_of(upload.expires_at), upload.bytes, *quota, *fields,
        )  # fmt: skip
        check_quota(*await self._queue.run("open_upload", SHARD, arguments))

    async def get(self, tenant: str, upload_id: str) -> Upload | None:
        """None if it is unknown, has expired, or is another tenant's."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.time()
        pipe.hmget(keys.first(keys.UPLOAD, upload_id), _FIELDS)
        (seconds, _), values = await pipe.execute()
        if None in values:
            return None
        owner, filename, purpose, n_bytes, created_us, expires_us, ttl_s, status = values
        upload = Upload(
            upload_id,
            owner.decode(),
            filename.decode(),
            Purpose(purpose.decode()),
            int(n_bytes),
            int(created_us) / 1e6,
            seconds_of(expires_us) or 0.0,
            float(ttl_s) if ttl_s else None,
            UploadStatus(status.decode()),
        )
        return upload if upload.tenant == tenant and upload.expires_at > int(seconds) else None

    async def add_part(
        self, upload: Upload, part_id: str, n_bytes: int, quota: StorageQuota
    ) -> None:
        """Add a part whose blob is there.

        Raises BadRequest, StorageQuotaExceeded, and NotFound if the upload has ended.
        """
        arguments = (upload.id, part_id, upload.tenant, n_bytes, MAX_PARTS, *quota)
        status, value = await self._queue.run("add_part", SHARD, arguments)
        if status == b"gone":
            raise NotFound("This upload has ended.")
        if status == b"parts":
            raise BadRequest(f"An upload may have at most {MAX_PARTS} parts.")
        if status == b"announced":
            raise BadRequest(
                f"The parts have more bytes than the {int(value)} that the upload was created with."
            )
        check_quota(status, value)

    async def parts(self, upload: Upload, part_ids: Sequence[str]) -> list[Segment]:
        """These parts, in this order. Raises BadRequest if one is not the upload's."""
        key = keys.first(keys.UPLOAD_PARTS, upload.id)
        sizes = await self._redis.hmget(key, part_ids) if part_ids else []
        for number, size in enumerate(sizes):
            if size is None:
                raise BadRequest(
                    f"`part_ids[{number}]` is no part of this upload.", f"part_ids[{number}]"
                )
        named = zip(part_ids, sizes, strict=True)
        return [Segment(part_blob(upload.id, part_id), int(size)) for part_id, size in named]

    async def complete(self, upload: Upload, file: StoredFile) -> list[str] | UploadStatus | None:
        """Make the file of parts of this upload; returns all its parts.

        If it has ended already, its status; None: there is none.
        """
        of_file = (
            file.id, micros_of(file.created_at), micros_of(file.expires_at), file.bytes,
            len(file.segments), *record_of(file),
        )  # fmt: skip
        return await self._end(upload.id, upload.tenant, UploadStatus.COMPLETED, *of_file)

    async def cancel(self, upload: Upload) -> list[str] | UploadStatus | None:
        """Give an upload up; returns as `complete`."""
        return await self._end(upload.id, upload.tenant, UploadStatus.CANCELLED)

    async def expire(self, upload_id: str) -> list[str]:
        """Delete the record of an upload that has expired; returns the parts that no file has."""
        tenant = await self._redis.hget(keys.first(keys.UPLOAD, upload_id), "tenant")
        if tenant is None:
            await self._redis.zrem(keys.first(keys.FILES_EXPIRING), upload_id)
            return []
        ended = await self._end(upload_id, tenant.decode(), "")
        return ended if isinstance(ended, list) else []

    async def _end(
        self, upload_id: str, tenant: str, status: str, *of_file: object
    ) -> list[str] | UploadStatus | None:
        arguments = (upload_id, tenant, status, *of_file)
        reply, *parts = await self._queue.run("end_upload", SHARD, arguments)  # type: ignore[arg-type]
        if reply == b"gone":
            return None
        if reply != b"ok":
            return UploadStatus(reply.decode())
        return [part.decode() for part in parts[0]]
