"""Deletes files that have expired, and blobs of the storage that no record names.

Such a blob is left when a process is killed between the storage and Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence

from gateway.files.files import Files
from shared.batches.batch import file_id_of
from shared.job.errors import FileInUse
from shared.platform.logs import RareWarning
from shared.storage import Blob, Storage
from shared.store.queue import Queue

log = logging.getLogger("flotilla.maintenance")

PREFIXES = ("files", "batches")
"""Where all blobs belong to files or batches, by their names."""
_ORPHAN_S = 86_400.0
"""A blob without a record that is younger may be about to get one."""
_ROUND_S = 5.0
"""Longest time for the orphans of one round; the next goes on from there."""
_AT_ONCE = 200
_MOST_EXPIRED = 2_000
"""Files that one round deletes."""


class FileSweep:
    """One round after the other; keeps in mind where the last one stopped."""

    def __init__(self, queue: Queue, storage_url: str) -> None:
        """Raises SettingsError."""
        self._files = Files(queue, storage_url)
        self._blobs: AsyncIterator[Blob] | None = None
        self._warn_shared = RareWarning(log, 86_400.0)

    async def sweep(self) -> None:
        """Do one round. Raises StoreError and StorageUnavailable."""
        storage = await self._files.ready()
        await self._delete_expired()
        if len(await storage.fleets()) > 1:
            self._warn_shared(
                "blobs without a record stay: another fleet uses the storage, too, or Redis has "
                "lost its data; delete the ids in its folder `fleets` that are no fleet's any more"
            )
            return
        await storage.delete_partial(time.time() - _ORPHAN_S)
        await self._delete_orphans(storage)

    async def _delete_expired(self) -> None:
        n_deleted = 0
        while n_deleted < _MOST_EXPIRED:
            files = await self._files.records.documents.expired(_AT_ONCE)
            if not files:
                break
            n_deleted += len(files)
            for file in files:
                with contextlib.suppress(FileInUse):
                    await self._files.delete(file.tenant, file.id)
        if n_deleted:
            log.info("deleted what has expired: %d files", n_deleted)

    async def _delete_orphans(self, storage: Storage) -> None:
        clock = asyncio.get_running_loop().time
        until_s = clock() + _ROUND_S
        # Put back only at the end: a generator that has raised can't be continued.
        blobs, self._blobs = self._blobs or _blobs(storage), None
        old_s = await self._files.records.documents.now_s() - _ORPHAN_S
        some: list[str] = []
        async for blob in blobs:
            if blob.modified_at < old_s:
                some.append(blob.name)
            if len(some) >= _AT_ONCE:
                await self._delete_unknown(some)
                some = []
            if clock() > until_s:
                self._blobs = blobs
                break
        await self._delete_unknown(some)

    async def _delete_unknown(self, names: Sequence[str]) -> None:
        by_name = {name: _owners(name) for name in names}
        ids = [each for found in by_name.values() for each in found]
        known = await self._files.records.known(ids)
        unknown = [name for name, found in by_name.items() if known.isdisjoint(found)]
        if unknown:
            log.warning(
                "deleting %d blobs without a record, %s among them", len(unknown), unknown[0]
            )
            await self._files.delete_blobs(unknown)


def _owners(blob: str) -> tuple[str, ...]:
    """The ids of what a blob belongs to, by its name: of a file, or of a batch and its files."""
    folder, _, name = blob.rpartition("/")
    if blob.startswith("batches/"):
        batch_id = folder.removeprefix("batches/")
        return batch_id, file_id_of(batch_id, "output"), file_id_of(batch_id, "errors")
    return (name,)


async def _blobs(storage: Storage) -> AsyncIterator[Blob]:
    for prefix in PREFIXES:
        async for blob in storage.list(prefix):
            yield blob
