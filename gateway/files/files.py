"""The files of a fleet: what Redis knows of them, and the storage that has their bytes.

What other code needs of files is here: `of` (a file of a tenant, or 404), `storage` and `ready`
(the storage, or 501 and 503), `records`, `store_blob`, and `delete` and `delete_blobs`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from shared.job.errors import (
    FlotillaError,
    NotFound,
    StorageNotConfigured,
    StorageUnavailable,
)
from shared.platform.logs import RareWarning
from shared.storage import Storage
from shared.store.files import FileRecords, StoredFile
from shared.store.queue import Queue

log = logging.getLogger("flotilla.files")

_CHECKED_S = 2.0
"""The storage counts as the fleet's for so long."""


class Files:
    """Made once in a process."""

    def __init__(self, queue: Queue, storage_url: str) -> None:
        """`storage_url`: empty if there is none. Raises SettingsError."""
        self.records = FileRecords(queue)
        self._storage = Storage.open(storage_url) if storage_url else None
        self._checked_until = 0.0
        self._warn = RareWarning(log)

    @property
    def storage(self) -> Storage:
        """Where the bytes are. Raises StorageNotConfigured."""
        if self._storage is None:
            raise StorageNotConfigured
        return self._storage

    async def ready(self, *, just_now: bool = False) -> Storage:
        """The storage, if it answers and is that of the whole fleet: needed before writing to it.

        `just_now`: not two seconds ago. A folder may be one that is not mounted any more.

        Raises StorageNotConfigured, StorageUnavailable, and StoreError.
        """
        storage, now = self.storage, asyncio.get_running_loop().time()
        if just_now or now >= self._checked_until:
            try:
                await self._check(storage)
            except StorageUnavailable as error:
                self._warn("the storage of files: %s", error.cause or error)
                raise
            self._checked_until = now + _CHECKED_S
        return storage

    async def _check(self, storage: Storage) -> None:
        fleet = await self.records.fleet_id()
        if fleet is None:
            new = secrets.token_hex(12)
            await storage.mark(new)
            fleet = await self.records.fleet_id(new)
            if fleet != new:  # another process was faster, perhaps with another storage
                await storage.unmark(new)
        if fleet not in await storage.fleets():
            raise StorageUnavailable(
                "The storage of this process (FLOTILLA_STORAGE_URL) is not the one in which the "
                "fleet's files are: all processes need the same folder or bucket."
            )

    async def of(self, tenant: str, file_id: str) -> StoredFile:
        """A file of the tenant. Raises NotFound, and StoreError."""
        file = await self.records.get(tenant, file_id)
        if file is None:
            raise no_such_file(file_id)
        return file

    async def store_blob(
        self, name: str, chunks: AsyncIterator[bytes], keep: Callable[[int], Awaitable[None]]
    ) -> int:
        """Write a blob and its record (`keep`, which gets its bytes); returns its bytes.

        If it is refused, nothing is left. If Redis can't be reached the record may have been
        written, so the blob stays: maintenance deletes it if there is no record.
        """
        n_bytes = await self.storage.write(name, chunks)
        try:
            await keep(n_bytes)
        except FlotillaError:
            await self.delete_blobs([name])
            raise
        return n_bytes

    async def delete(self, tenant: str, file_id: str) -> bool:
        """Delete a file; False if there is none. Raises FileInUse, and StoreError."""
        deleted = await self.records.delete(tenant, file_id)
        if deleted is not None:
            await self.delete_blobs([segment.blob for segment in deleted.segments])
        return deleted is not None

    async def delete_blobs(self, names: Sequence[str]) -> None:
        """Delete blobs that no record names any more; maintenance finds those that are left."""
        try:
            await self.storage.delete(names)
        except StorageUnavailable as error:
            self._warn("%d blobs could not be deleted: %s", len(names), error.cause or error)


def no_such_file(file_id: str) -> NotFound:
    """The answer for a file that is unknown, deleted, expired, or another tenant's."""
    return NotFound(f"There is no file {file_id[:64]!r}; files expire, see `expires_at`.")
