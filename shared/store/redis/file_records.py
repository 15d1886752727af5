"""Files in Redis: who has which, and which blobs of the storage have their bytes.

All of it lies in the first shard, as batches do, which read files. The record goes first when a
file is deleted, and comes last when it is stored: a blob without a record is garbage, which
maintenance finds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from shared.files.stored_file import Purpose, Segment, StoredFile
from shared.job.errors import BadRequest, FileInUse, StorageQuotaExceeded
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue

SHARD = 0
_AT_ONCE = 250
"""Records that are read in one round trip: between two, other work goes on."""
_RETRY_S = 600.0
"""An expired file that a batch reads is looked at again after this time."""
_FIELDS = ("tenant", "filename", "purpose", "created_us", "expires_us", "segments")


class StorageQuota(NamedTuple):
    """What one tenant may have in the storage; 0: no limit."""

    bytes: int = 0
    files: int = 0


class FileRecords:
    """The files of all tenants. Methods raise StoreError."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._redis = queue.servers.of(SHARD)

    async def now_s(self) -> float:
        """By the clock that decides what has expired."""
        seconds, micros = await self._redis.time()
        return int(seconds) + int(micros) / 1e6

    async def add(self, file: StoredFile, max_bytes: int = 0, max_files: int = 0) -> None:
        """Store the record of a file whose blobs are there; again is no error.

        The limits are the tenant's, 0: none. Raises StorageQuotaExceeded.
        """
        arguments = (
            file.id, file.tenant, _micros(file.created_at), _micros(file.expires_at),
            file.bytes, max_bytes, max_files, *_record_of(file),
        )  # fmt: skip
        _check_quota(*await self._queue.run("store_file", SHARD, arguments))

    async def check_room(self, tenant: str, quota: StorageQuota) -> None:
        """Raise StorageQuotaExceeded if the tenant has no room at all: before it sends a file."""
        key = keys.first(keys.STORED, tenant)
        values = await self._redis.hmget(key, *StorageQuota._fields)
        for name, value, most in zip((b"bytes", b"files"), values, quota, strict=True):
            if most and int(value or 0) >= most:
                _check_quota(name, value)

    async def get(self, tenant: str, file_id: str, *, held: bool = False) -> StoredFile | None:
        """The file; None if it is unknown, has expired, or is another tenant's.

        `held`: also one that has expired. A file stays there as long as a batch uses it.
        """
        pipe = self._redis.pipeline(transaction=False)
        pipe.time()
        pipe.hmget(keys.first(keys.FILE, file_id), _FIELDS)
        (seconds, _), values = await pipe.execute()
        file = _parse(file_id, values)
        if file is None or file.tenant != tenant or (not held and _expired(file, int(seconds))):
            return None
        return file

    async def list(
        self,
        tenant: str,
        after: str = "",
        limit: int = 100,
        order: Literal["asc", "desc"] = "desc",
        purpose: Purpose | None = None,
    ) -> tuple[Sequence[StoredFile], bool]:
        """At most `limit` files behind the file `after`, and whether there are more.

        `purpose`: only those; None: all.

        Raises BadRequest if the tenant has no file `after`, and has deleted none lately.
        """
        index, newest_first = keys.first(keys.FILES, tenant), order == "desc"
        rank = -1
        if after:
            rank = await (self._redis.zrevrank if newest_first else self._redis.zrank)(index, after)
            if rank is None:
                place = await self._redis.get(keys.first(keys.GONE, after))
                if place is None:
                    raise BadRequest("You have no file of this id.", "after")
                before = (f"({int(place)}", "+inf") if newest_first else ("-inf", f"({int(place)}")
                rank = await self._redis.zcount(index, *before) - 1
        found: list[StoredFile] = []
        now_s = await self.now_s()
        while len(found) <= limit:
            ids = await self._redis.zrange(index, rank + 1, rank + _AT_ONCE, desc=newest_first)
            rank += len(ids)
            found += [
                file
                for file in await self._read([each.decode() for each in ids])
                if not _expired(file, now_s) and purpose in (None, file.purpose)
            ]
            if len(ids) < _AT_ONCE:
                break
        return found[:limit], len(found) > limit

    async def delete(self, tenant: str, file_id: str) -> StoredFile | None:
        """Delete the record and return it, so that its blobs can be deleted; None: there is none.

        Raises FileInUse while a batch uses the file.
        """
        later_us = _micros(await self.now_s() + _RETRY_S)
        arguments = (file_id, tenant, later_us)
        status, *record = await self._queue.run("delete_file", SHARD, arguments)
        if status == b"in_use":
            raise FileInUse("A batch that has not ended reads this file; cancel it first.")
        if status == b"gone":
            return None
        values = dict(zip(record[::2], record[1::2], strict=True))
        return _parse(file_id, [values.get(name.encode()) for name in _FIELDS])

    async def expired(self, limit: int) -> Sequence[StoredFile]:
        """At most `limit` files that have expired."""
        due = await self._redis.zrange(
            keys.first(keys.FILES_EXPIRING), 0, _micros(await self.now_s()),
            byscore=True, offset=0, num=limit,
        )  # fmt: skip
        ids = [each.decode() for each in due]
        files = await self._read(ids)
        gone = set(ids) - {file.id for file in files}
        if gone:  # their records were lost
            await self._redis.zrem(keys.first(keys.FILES_EXPIRING), *gone)
        return files

    async def known(self, ids: Sequence[str]) -> set[str]:
        """Those of these ids whose file or batch has a record; ids of another form, too, as
        Flotilla has not written their blobs."""
        words = {"file": keys.FILE, "batch": keys.BATCH}
        kinds = {each: words.get(each.replace("-", "_").partition("_")[0]) for each in ids}
        pipe = self._redis.pipeline(transaction=False)
        for each, word in kinds.items():
            pipe.exists(keys.first(word or keys.FILE, each))
        found = zip(kinds.items(), await pipe.execute(), strict=True)
        return {each for (each, word), there in found if there or word is None}

    async def fleet_id(self, new: str | None = None) -> str | None:
        """The id that the fleet has left in its storage; `new` becomes it if there is none."""
        redis = self._queue.servers.primary
        if new is not None:
            await redis.set(keys.STORAGE, new, nx=True)
        found = await redis.get(keys.STORAGE)
        return None if found is None else found.decode()

    async def _read(self, ids: Sequence[str]) -> Sequence[StoredFile]:
        pipe = self._redis.pipeline(transaction=False)
        for each in ids:
            pipe.hmget(keys.first(keys.FILE, each), _FIELDS)
        found = map(_parse, ids, await pipe.execute()) if ids else ()
        return [file for file in found if file is not None]


def _micros(at: float | None) -> str:
    """A time as the scripts have it; empty: none."""
    return "" if at is None else f"{at * 1e6:.0f}"


def _seconds(micros: bytes | str) -> float | None:
    """The reverse."""
    return int(micros) / 1e6 if micros else None


def _record_of(file: StoredFile) -> list[Any]:
    """The fields of a file's record, flat."""
    fields: Mapping[str, Any] = {
        "tenant": file.tenant,
        "filename": file.filename,
        "purpose": file.purpose,
        "created_us": _micros(file.created_at),
        "expires_us": _micros(file.expires_at),
        "bytes": file.bytes,
        "segments": "\n".join(f"{segment.bytes} {segment.blob}" for segment in file.segments),
    }
    return [word for pair in fields.items() for word in pair]


def _check_quota(status: bytes, value: bytes) -> None:
    """Raise StorageQuotaExceeded if a script has replied so."""
    if status in (b"bytes", b"files"):
        raise StorageQuotaExceeded(
            f"Your quota of stored {status.decode()} is used up: there are {int(value)} now. "
            "Delete files that you do not need, or wait until they expire."
        )


def _expired(file: StoredFile, now_s: float) -> bool:
    return file.expires_at is not None and file.expires_at <= now_s


def _parse(file_id: str, values: Sequence[bytes | None]) -> StoredFile | None:
    fields = [value.decode() for value in values if value is not None]
    if len(fields) < len(_FIELDS):
        return None
    tenant, filename, purpose, created_us, expires_us, segments = fields
    return StoredFile(
        file_id,
        tenant,
        filename,
        Purpose(purpose),
        int(created_us) / 1e6,
        _seconds(expires_us),
        tuple(map(_segment, segments.splitlines())),
    )


def _segment(line: str) -> Segment:
    n_bytes, _, blob = line.partition(" ")
    return Segment(blob, int(n_bytes))
