"""Blob storage: bytes under a key, for what is too large for Redis (files and results of batches).

`BlobStore` is the interface; `FolderBlobs` keeps each blob as a file of a local or shared folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
from pathlib import Path
from typing import Protocol

_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


class BlobStore(Protocol):
    """Storage of bytes by key. Keys are 1 to 200 letters, digits and `_.-`, not `.` first.

    All methods raise ValueError for any other key and OSError when the storage fails.
    """

    async def put(self, key: str, data: bytes) -> None:
        """Store `data`, in place of what was there. Readers get the old or the new blob, whole."""

    async def get(self, key: str) -> bytes:
        """Return the blob. Raises KeyError if there is none."""

    async def exists(self, key: str) -> bool:
        """Whether there is a blob with this key."""

    async def delete(self, key: str) -> None:
        """Remove the blob, if there is one."""


class FolderBlobs:
    """Blobs as files in one folder, which is made if it is missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def put(self, key: str, data: bytes) -> None:
        """Write a temporary file, sync it and rename it, so that a crash leaves no partial blob."""
        await asyncio.to_thread(self._put, self._path(key), data)

    async def get(self, key: str) -> bytes:
        """Return the blob. Raises KeyError if there is none."""
        try:
            return await asyncio.to_thread(self._path(key).read_bytes)
        except FileNotFoundError:
            raise KeyError(key) from None

    async def exists(self, key: str) -> bool:
        """Whether there is a blob with this key."""
        return await asyncio.to_thread(self._path(key).is_file)

    async def delete(self, key: str) -> None:
        """Remove the blob, if there is one."""
        await asyncio.to_thread(self._path(key).unlink, missing_ok=True)

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):  # a key comes from outside: it must not lead out of the folder
            raise ValueError(f"not a blob key: {key[:80]!r}")
        return self._folder / key

    def _put(self, path: Path, data: bytes) -> None:
        temporary = self._folder / f".{secrets.token_hex(8)}"  # no key begins with a dot
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
