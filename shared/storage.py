"""The bytes of files: blobs in a folder or in a cloud's bucket, through the library obstore.

A blob is written whole or not at all, and never changes. obstore does the input and output in
threads of its own; here only chunks pass. In a bucket, an upload whose process was killed leaves
hidden parts, which a lifecycle rule of the bucket removes; in a folder `partial` finds them.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import re
import shutil
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, LocalStore, S3Store, from_url
from pydantic import Field

from shared.job.errors import BlobMissing, StorageUnavailable
from shared.platform.settings import ProcessSettings, SettingsError

_Store: TypeAlias = LocalStore | S3Store | GCSStore | AzureStore

CHUNK_BYTES = 1 << 18
"""What is read at once, and about what one upload should pass on at once. Each slow reader of a
file holds a chunk."""
_PART_BYTES = 5 << 20
"""Of one blob that is written in parts: the least that S3 takes. It takes 10,000 of them."""
MAX_BLOB_BYTES = 10_000 * _PART_BYTES
_PARTS_AT_ONCE = 2
_DELETED_AT_ONCE = 500
_FLEETS = "fleets"
_PARTIAL = re.compile(r"#\d+$")  # of a folder: what obstore calls a blob until it is whole
_RETRY = {"max_retries": 3, "retry_timeout": dt.timedelta(seconds=15)}


class StorageSettings(ProcessSettings):
    """Settings of the processes that use the storage."""

    storage_url: str = Field(
        "",
        description="where files and the outputs of batches are: a folder, or s3://bucket/prefix, "
        "gs:// or az://, the same for gateways and maintenance; empty: none are stored. A bucket's "
        "credentials are those of its cloud's own tools (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...)",
    )


class Segment(NamedTuple):
    """A part of a file's bytes: a whole blob of the storage."""

    blob: str
    bytes: int


class Blob(NamedTuple):
    """A blob that is there."""

    name: str
    bytes: int
    modified_at: float
    """Seconds since 1970, by the clock of the storage."""


class Storage:
    """One storage. All methods raise StorageUnavailable where it does not answer or is full."""

    def __init__(self, store: _Store, folder: Path | None) -> None:
        self._store = store
        self._folder = folder

    @classmethod
    def open(cls, url: str) -> Self:
        """`url`: a folder's path, which is created, file://, s3://, gs:// or az://.

        obstore reads the variables of the clouds' own tools, such as AWS_ENDPOINT_URL. Raises
        SettingsError.
        """
        scheme = urlsplit(url).scheme
        try:
            if scheme in ("", "file"):
                folder = Path(unquote(urlsplit(url).path) if scheme else url).resolve()
                return cls(LocalStore(folder, automatic_cleanup=True, mkdir=True), folder)
            if scheme not in ("s3", "gs", "az"):
                raise ValueError("must be a folder, or start with file://, s3://, gs:// or az://")
            store: Any = from_url(url, retry_config=_RETRY)  # type: ignore[call-overload]
        except (BaseError, OSError, ValueError) as error:
            raise SettingsError(f"FLOTILLA_STORAGE_URL: {_first_line(error)}") from error
        return cls(store, None)

    async def write(self, name: str, chunks: AsyncIterable[bytes]) -> int:
        """Make a blob of the chunks; returns its bytes. Raises what `chunks` raises.

        After an error, or if this is cancelled, there is no blob.
        """
        n_bytes = 0
        with _errors():
            writer = obstore.open_writer_async(
                self._store, name, buffer_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE
            )
        try:
            async for chunk in chunks:
                n_bytes += len(chunk)
                with _errors():
                    await writer.write(chunk)
            closing = asyncio.ensure_future(_close(writer))
        finally:
            del writer  # unless it is closed, what it has written goes with it
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.wait([closing])  # the blob may be there already
            with contextlib.suppress(StorageUnavailable):
                await self.delete([name])
            raise
        return n_bytes

    async def write_bytes(self, name: str, data: bytes) -> None:
        """Make a blob of at most some MiB in one piece."""
        with _errors():
            await obstore.put_async(self._store, name, data, use_multipart=False)

    async def read(
        self, segments: Sequence[Segment], start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        """The bytes from `start` to before `end` of a file with these segments, in chunks.

        One request for each chunk. Raises BlobMissing if one is gone or shorter.
        """
        offset = 0
        for blob, n_bytes in segments:
            first, last = max(start - offset, 0), n_bytes
            if end is not None:
                last = min(last, end - offset)
            offset += n_bytes
            if first < last:
                async for chunk in self._read_blob(blob, first, last):
                    yield chunk

    async def _read_blob(self, name: str, start: int, end: int) -> AsyncIterator[bytes]:
        # Not one stream: obstore ends a request of a bucket after 30 s, however slow its reader is.
        for at in range(start, end, CHUNK_BYTES):
            until = min(end, at + CHUNK_BYTES)
            with _errors(name):
                found = await obstore.get_range_async(self._store, name, start=at, end=until)
            data = bytes(found)
            del found  # who takes the data may be slow
            if len(data) < until - at:
                raise _missing(name)
            yield data

    async def delete(self, names: Sequence[str]) -> None:
        """Delete these blobs; those that are not there are no error."""
        for at in range(0, len(names), _DELETED_AT_ONCE):
            some = list(names[at : at + _DELETED_AT_ONCE])
            with _errors():
                try:
                    await obstore.delete_async(self._store, some)
                except FileNotFoundError:  # only a folder says so, and stops there
                    for name in some:
                        with contextlib.suppress(FileNotFoundError):
                            await obstore.delete_async(self._store, name)

    async def list(self, prefix: str) -> AsyncIterator[Blob]:
        """The blobs below a prefix that is a whole part of a path, such as `files`."""
        with _errors():
            async for found in obstore.list(self._store, prefix, chunk_size=500):
                for meta in found:
                    yield Blob(meta["path"], meta["size"], meta["last_modified"].timestamp())

    async def delete_partial(self, before: float) -> int:
        """Delete what killed processes have left of blobs in a folder; returns how many.

        `before`: only what was last written before this time.
        """
        if self._folder is None:
            return 0
        with _errors():
            return await asyncio.to_thread(_delete_partial, self._folder, before)

    async def space(self) -> tuple[int, int] | None:
        """Free and all bytes of the folder's disk; None in a bucket."""
        if self._folder is None:
            return None
        with _errors():
            usage = await asyncio.to_thread(shutil.disk_usage, self._folder)
        return usage.free, usage.total

    async def mark(self, fleet: str) -> None:
        """Leave the id of a fleet, which shows that this is its storage."""
        await self.write_bytes(f"{_FLEETS}/{fleet}", b"1")

    async def unmark(self, fleet: str) -> None:
        """Take it away."""
        await self.delete([f"{_FLEETS}/{fleet}"])

    async def fleets(self) -> set[str]:
        """The fleets that have left their ids here."""
        return {blob.name.rpartition("/")[2] async for blob in self.list(_FLEETS)}


async def _close(writer: obstore.AsyncWritableFile) -> None:
    with _errors():
        await writer.close()


def _delete_partial(folder: Path, before: float) -> int:
    n_deleted = 0
    for where, _, names in os.walk(folder):
        for name in filter(_PARTIAL.search, names):
            path = Path(where, name)
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()
                    n_deleted += 1
    return n_deleted


@contextlib.contextmanager
def _errors(blob: str = "") -> Iterator[None]:
    """Raise obstore's errors as ours. `blob`: it has to be there."""
    try:
        yield
    except FileNotFoundError as error:
        if blob:
            raise _missing(blob) from error
        raise _unavailable(error) from error
    except (BaseError, OSError, ValueError) as error:
        if blob and "Range" in str(error):  # it is shorter
            raise _missing(blob) from error
        raise _unavailable(error) from error


def _missing(blob: str) -> BlobMissing:
    return BlobMissing(f"The storage has lost a part of this file: {blob}.")


def _unavailable(error: Exception) -> StorageUnavailable:
    message = "The storage of files can't be reached or is full now; try again."
    return StorageUnavailable(message, _first_line(error))


def _first_line(error: Exception) -> str:
    """Without the dump of obstore's own objects."""
    return (str(error) or type(error).__name__).splitlines()[0]
