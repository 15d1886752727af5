"""Blob storage in a folder: a blob is stored completely or not at all."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shared.platform.blobs import BlobStore, FolderBlobs


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return FolderBlobs(tmp_path / "blobs")


async def test_a_blob_is_stored_replaced_and_deleted(blobs: BlobStore) -> None:
    assert not await blobs.exists("batch_1.jsonl")
    await blobs.put("batch_1.jsonl", b"one")
    await blobs.put("batch_1.jsonl", b"two")
    assert await blobs.exists("batch_1.jsonl")
    assert await blobs.get("batch_1.jsonl") == b"two"
    await blobs.delete("batch_1.jsonl")
    await blobs.delete("batch_1.jsonl")
    assert not await blobs.exists("batch_1.jsonl")


async def test_a_blob_that_is_not_there(blobs: BlobStore) -> None:
    with pytest.raises(KeyError):
        await blobs.get("none")


@pytest.mark.parametrize("key", ["", ".", "..", ".hidden", "a/b", "/etc/passwd", "a\n", "x" * 201])
async def test_a_key_can_not_lead_out_of_the_folder(blobs: BlobStore, key: str) -> None:
    for call in (blobs.get, blobs.exists, blobs.delete):
        with pytest.raises(ValueError, match="not a blob key"):
            await call(key)
    with pytest.raises(ValueError, match="not a blob key"):
        await blobs.put(key, b"data")


async def test_readers_see_the_old_or_the_new_blob_whole(blobs: BlobStore) -> None:
    contents = {bytes([number]) * 100_000 for number in range(8)}
    await blobs.put("blob", b"\0" * 100_000)

    async def read() -> None:
        for _ in range(50):
            assert await blobs.get("blob") in contents

    await asyncio.gather(read(), *(blobs.put("blob", content) for content in contents))


async def test_a_failed_write_leaves_the_old_blob_and_no_rest(
    blobs: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await blobs.put("blob", b"old")

    def full(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="disk full"):
        await blobs.put("blob", b"new")
    assert await blobs.get("blob") == b"old"
    assert [path.name for path in (tmp_path / "blobs").iterdir()] == ["blob"]
