"""Files of tenants: what Redis knows of them. Their bytes are blobs of the storage (storage.py).

The record goes first when a file is deleted, and comes last when it is stored: a blob without a
record is garbage, which maintenance finds.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from typing import Literal, NamedTuple

from pydantic import TypeAdapter

from shared.job.errors import BadRequest, FileInUse, StorageQuotaExceeded
from shared.storage import Segment
from shared.store import keys
from shared.store.documents import Documents, InUse, Kind, LimitReached
from shared.store.queue import Queue


class Purpose(StrEnum):
    """What a file is for, in OpenAI's words."""

    BATCH = "batch"
    USER_DATA = "user_data"
    BATCH_OUTPUT = "batch_output"


UPLOADED = (Purpose.BATCH, Purpose.USER_DATA)
"""The purposes of files that clients upload."""


class StoredFile(NamedTuple):
    """A file that can be read. It never changes."""

    id: str
    """`file-` and 24 hex digits."""
    tenant: str
    filename: str
    purpose: Purpose
    created_at: float
    """Seconds since 1970, by Redis' clock, as `expires_at`."""
    expires_at: float | None
    segments: tuple[Segment, ...]
    """Its bytes, one behind the other; nothing is copied to make one blob of them."""

    @property
    def bytes(self) -> int:
        """How many bytes it has."""
        return total_bytes(self.segments)

    def expired(self, now_s: float) -> bool:
        """Whether it is as if it were deleted."""
        return self.expires_at is not None and self.expires_at <= now_s


class StorageQuota(NamedTuple):
    """What one tenant may have in the storage; 0: no limit."""

    bytes: int = 0
    files: int = 0


_UNLIMITED = StorageQuota()
_KIND = Kind("file", TypeAdapter(StoredFile), lambda file: file.tenant, lambda file: file.bytes)
"""create_batch.lua knows it, too."""


class FileRecords:
    """The files of all tenants. Methods raise StoreError."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.documents = Documents(queue, _KIND)

    async def add(self, file: StoredFile, quota: StorageQuota = _UNLIMITED) -> None:
        """Store the record of a file whose blobs are there; again is no error.

        Raises StorageQuotaExceeded.
        """
        try:
            await self.documents.add(
                file.id, file, at=file.created_at, expires_at=file.expires_at,
                most=quota.files, most_bytes=quota.bytes,
            )  # fmt: skip
        except LimitReached as reached:
            what = "files" if reached.what == "number" else "bytes"
            raise _quota_exceeded(what, reached.has) from None

    async def check_room(self, tenant: str, quota: StorageQuota) -> None:
        """Raise StorageQuotaExceeded if the tenant has no room at all: before it sends a file."""
        number, n_bytes = await self.documents.used(tenant)
        for what, has, most in zip(quota._fields, (n_bytes, number), quota, strict=True):
            if most and has >= most:
                raise _quota_exceeded(what, has)

    async def get(self, tenant: str, file_id: str, *, held: bool = False) -> StoredFile | None:
        """The file; None if it is unknown, has expired, or is another tenant's.

        `held`: also one that has expired. A file stays there as long as a batch uses it.
        """
        file = await self.documents.get(file_id)
        if file is None or file.tenant != tenant:
            return None
        if file.expires_at is None or held or not file.expired(await self.documents.now_s()):
            return file
        return None

    async def list(
        self,
        tenant: str,
        after: str = "",
        limit: int = 100,
        order: Literal["asc", "desc"] = "desc",
        purpose: Purpose | None = None,
    ) -> tuple[list[StoredFile], bool]:
        """At most `limit` files behind the file `after`, and whether there are more.

        `purpose`: only those; None: all.

        Raises BadRequest if the tenant has no file `after`, and has deleted none lately.
        """
        now_s = await self.documents.now_s()
        page = await self.documents.page(
            after,
            limit,
            tenant=tenant,
            newest_first=order == "desc",
            wanted=lambda file: purpose in (None, file.purpose) and not file.expired(now_s),
        )
        if page is None:
            raise BadRequest("You have no file of this id.", "after")
        return page

    async def delete(self, tenant: str, file_id: str) -> StoredFile | None:
        """Delete the record and return it, so that its blobs can be deleted; None: there is none.

        Raises FileInUse while a batch uses the file.
        """
        try:
            return await self.documents.delete(file_id, lambda file: file.tenant == tenant)
        except InUse:
            raise FileInUse(
                "A batch that has not ended reads this file; cancel it first."
            ) from None

    async def known(self, ids: Sequence[str]) -> set[str]:
        """Those of these ids whose file or batch has a record; ids of another form, too, as
        Flotilla has not written their blobs."""
        known = {each for each in ids if not each.startswith(("file-", "batch_"))}
        known |= await self.documents.known(ids)
        batches = [each for each in ids if each.startswith("batch_")]
        pipe = self._queue.servers.of(0).pipeline(transaction=False)
        for each in batches:
            pipe.exists(keys.first("batch", each))
        there = await pipe.execute()
        return known | {each for each, found in zip(batches, there, strict=True) if found}

    async def fleet_id(self, new: str | None = None) -> str | None:
        """The id that the fleet has left in its storage; `new` becomes it if there is none."""
        redis = self._queue.servers.primary
        if new is not None:
            await redis.set(keys.fleet("storage"), new, nx=True)
        found = await redis.get(keys.fleet("storage"))
        return None if found is None else found.decode()


def total_bytes(segments: Sequence[Segment]) -> int:
    """How many bytes these have together."""
    return sum(segment.bytes for segment in segments)


def new_file_id() -> str:
    """`file-` and 96 random bits."""
    return f"file-{os.urandom(12).hex()}"


def file_blob(file_id: str) -> str:
    """The blob of a file that was uploaded."""
    return f"files/{file_id}"


def _quota_exceeded(what: str, has: int) -> StorageQuotaExceeded:
    return StorageQuotaExceeded(
        f"Your quota of stored {what} is used up: there are {has} now. "
        "Delete files that you do not need, or wait until they expire."
    )
