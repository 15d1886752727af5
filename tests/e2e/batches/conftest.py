"""Batches that run in the test's own process, on simulated workers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.batches import owner
from gateway.batches.batch_context import BatchContext
from gateway.batches.batch_work import BatchWork
from shared.batches.batch import Batch, new_batch_id
from shared.storage import Segment
from shared.store import keys
from shared.store.batch_records import Which
from shared.store.files import Purpose, StoredFile
from shared.store.servers import Servers
from tests.harness.client import CHAT
from tests.harness.fleet import Stack
from tests.harness.settings import Settings

TENANT = "tenant"


class Crash(BaseException):
    """The process ends here."""


class Batches:
    """Makes batches, works on them, and reads what became of them."""

    def __init__(self, context: BatchContext) -> None:
        self.context = context
        self.work = BatchWork(context)
        self.crashed = False

    async def create(self, data: bytes, **changes: Any) -> Batch:
        """A batch whose input is `data`."""
        context, batch_id = self.context, new_batch_id()
        now = await context.files.records.documents.now_s()
        blob = f"files/{batch_id}"
        storage = await context.files.ready()  # the first has it marked as the fleet's
        await storage.write_bytes(blob, data)
        file = StoredFile(
            f"file-{batch_id}", TENANT, "in.jsonl", Purpose.BATCH, now, None,
            (Segment(blob, len(data)),),
        )  # fmt: skip
        await context.files.records.add(file)
        values = {"window_s": 86_400.0, "completion_window": "24h", "metadata": None} | changes
        batch = Batch(batch_id, TENANT, CHAT, file.id, output_ttl_s=None, created_at=now, **values)
        await context.records.create(batch, 100)
        return batch

    async def get(self, batch: Batch) -> Batch:
        """The batch now."""
        found = await self.context.records.get(TENANT, batch.id)
        assert found is not None
        return found

    async def run(self, batch: Batch, slices: int = 100) -> Batch:
        """Work until it has ended."""
        for _ in range(slices):
            await self.work.work()
            found = await self.get(batch)
            if found.status.ended:
                return found
        raise AssertionError(f"it has not ended: {found}")

    def crash(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Go on as another process, which knows only what is stored."""
        monkeypatch.setattr(owner, "_PROCESS", new_batch_id())
        self.work = BatchWork(self.context)
        self.crashed = False

    async def jobs(self) -> Sequence[bytes]:
        """Records of jobs."""
        redis = self.context.queue.servers.of(0)
        return [each async for each in redis.scan_iter(f"{keys.base(0)}job:*")]

    async def lines(self, batch: Batch, which: Which) -> Sequence[dict[str, Any]]:
        """The lines of the output, or of the errors."""
        segments = await self.context.records.segments(batch.id, which)
        data = b"".join([part async for part in self.context.files.storage.read(segments)])
        return [json.loads(each) for each in data.splitlines()]

    async def file_lines(self, file_id: str) -> Sequence[dict[str, Any]]:
        """Those of a file that it has made."""
        file = await self.context.files.records.get(TENANT, file_id)
        assert file is not None
        data = b"".join([part async for part in self.context.files.storage.read(file.segments)])
        return [json.loads(each) for each in data.splitlines()]


async def check_sums(batches: Batches, batch: Batch, codes: set[str]) -> None:
    """Each line has one result; counts and usage add up; lines without an answer have a code."""
    output = await batches.lines(batch, "output")
    errors = await batches.lines(batch, "errors")
    ids = Counter(each["custom_id"] for each in [*output, *errors])
    assert set(ids.values()) == {1}
    assert len(output) == batch.completed
    assert len(errors) == batch.failed
    assert len(ids) == batch.total
    tokens = sum(each["response"]["body"]["usage"]["completion_tokens"] for each in output)
    assert tokens == batch.usage.output_tokens
    found = Counter(each["error"]["code"] for each in errors if each["error"])
    assert set(found) == codes


@pytest.fixture
async def batches(stack: Stack, redis_url: str, tmp_path: Path) -> AsyncIterator[Batches]:
    """With one simulated worker."""
    stack.worker(sim_step_ms=1, sim_max_num_seqs=8)
    async with opened(redis_url, tmp_path) as found:
        yield found


def opened(redis_url: str, folder: Path, **changes: Any) -> _Opened:
    """Batches without workers."""
    return _Opened(redis_url, folder, changes)


class _Opened:
    def __init__(self, redis_url: str, folder: Path, changes: dict[str, Any]) -> None:
        self._settings = Settings(redis_url=redis_url, storage_url=str(folder / "files"), **changes)

    async def __aenter__(self) -> Batches:
        self._servers = Servers(self._settings.redis_url, self._settings.shards)
        self._context = BatchContext.of(self._settings, self._servers)
        return Batches(self._context)

    async def __aexit__(self, *_: object) -> None:
        await self._context.queue.close()
        await self._servers.close()
