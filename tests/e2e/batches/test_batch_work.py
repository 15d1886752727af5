"""Whole batches on simulated workers: answers, refusals, cancelling, expiry, crashes."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from typing import Any

import pytest

from shared.batches.batch import BatchStatus
from shared.batches.line_check import BadLine, check_line
from shared.job.errors import StorageUnavailable
from shared.storage import Storage
from shared.store import keys
from tests.e2e.batches.conftest import TENANT, Batches, Crash, check_sums
from tests.harness.client import batch_line as line
from tests.harness.servers import RedisServer


async def test_lines_wait_while_redis_has_no_memory_for_them(
    batches: Batches, redis_server: RedisServer
) -> None:
    batch = await batches.create(b"\n".join(line(f"q{n}") for n in range(50)))
    with redis_server.client() as client:
        client.setrange("other", 20 << 20, "x")
        client.config_set("maxmemory", 40 << 20)  # of which 20 MB are for buffers
        try:
            while (await batches.get(batch)).status is not BatchStatus.IN_PROGRESS:
                await batches.work.work()
            await batches.work.work()
            assert not await batches.jobs()
        finally:
            client.config_set("maxmemory", 0)
            client.delete("other")
    ended = await batches.run(batch)
    assert (ended.status, ended.completed, ended.failed) == (BatchStatus.COMPLETED, 50, 0)


async def test_all_refused_have_no_output_file(batches: Batches) -> None:
    batch = await batches.run(await batches.create(line("a", max_tokens=-1)))
    assert (batch.status, batch.failed) == (BatchStatus.COMPLETED, 1)
    assert batch.output_file_id == ""
    assert batch.error_file_id


@pytest.mark.parametrize("name", ["background", "previous_response_id", "conversation"])
def test_lines_of_responses_store_nothing(name: str) -> None:
    body = {"model": "m", "input": "hi"}
    fields = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": body}
    assert check_line(json.dumps(fields).encode(), "/v1/responses", bool) == ("a", "m")
    body[name] = "x"
    with pytest.raises(BadLine, match=name):
        check_line(json.dumps(fields).encode(), "/v1/responses", bool)


async def test_nobody_owns_what_has_ended(batches: Batches) -> None:
    """A process that has read just before that the batch is open."""
    records = batches.context.records
    batch = await batches.create(line("a"))
    assert await records.open_batches() == [batch.id]
    await batches.run(batch)
    assert await records.own(batch.id, "another", 5.0) is None
    assert not await batches.context.queue.servers.of(0).exists(keys.first("batch_lock", batch.id))


async def test_cancelled_lines_are_in_the_errors(batches: Batches) -> None:
    lines = [line(f"q{n}", max_tokens=1 if n < 20 else 2000) for n in range(1500)]
    batch = await batches.create(b"\n".join(lines))
    while (await batches.get(batch)).completed < 20:
        await batches.work.work()
    asked = await batches.context.records.cancel(TENANT, batch.id)
    assert asked is not None
    assert asked.status is BatchStatus.CANCELLING
    ended = await batches.run(batch)
    assert ended.status is BatchStatus.CANCELLED
    assert ended.completed + ended.failed == ended.total == 1500
    await check_sums(batches, ended, {"batch_cancelled"})
    assert not await batches.jobs()


async def test_a_batch_expires(batches: Batches) -> None:
    lines = [line(f"q{n}", max_tokens=1 if n < 20 else 3000) for n in range(600)]
    batch = await batches.create(b"\n".join(lines), window_s=4.0)
    ended = await batches.run(batch)
    assert ended.status is BatchStatus.EXPIRED
    assert ended.completed >= 20
    await check_sums(batches, ended, {"batch_expired"})


async def test_nothing_is_written_where_the_storage_was(
    batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be back a moment later, without what was written then."""
    files, refused = batches.context.files, []
    original = files.ready

    async def ready(**words: bool) -> Storage:
        try:
            return await original(**words)
        except StorageUnavailable:
            refused.append(True)
            raise

    monkeypatch.setattr(files, "ready", ready)
    lines = [line(f"q{n}", max_tokens=1500, ignore_eos=True) for n in range(16)]
    batch = await batches.create(b"\n".join(lines))
    await batches.work.work()  # a slice, which is shorter than the answers
    folder = batches.context.settings.storage_url
    shutil.move(folder, f"{folder}-away")
    for _ in range(20):
        await batches.work.work()
        if refused:
            break
    assert refused
    assert [blob async for blob in files.storage.list("batches")] == []
    shutil.move(f"{folder}-away", folder)
    assert (await batches.run(batch)).completed == 16


async def test_batches_advance_side_by_side(batches: Batches) -> None:
    made = [await batches.create(b"\n".join(line(f"q{n}") for n in range(200))) for _ in range(3)]
    ends = []
    while len(ends) < 3:
        await batches.work.work()
        for batch in made:
            if batch not in ends and (await batches.get(batch)).status.ended:
                ends.append(batch)
    for batch in made:
        assert (await batches.get(batch)).completed == 200


@pytest.mark.parametrize("seed", range(6))
async def test_after_a_crash_anywhere_each_line_has_one_result(
    batches: Batches, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The owner ends at random places; the next one knows only what was stored."""
    draw = random.Random(seed)
    lines = [line(f"q{n}", max_tokens=-1 if n % 50 == 7 else 1 + n % 5) for n in range(400)]
    batch = await batches.create(b"\n".join(lines))
    crash_at(monkeypatch, batches, draw)
    crashes = 0
    while not (found := await batches.get(batch)).status.ended:
        with contextlib.suppress(Crash):
            await batches.work.work()
        if batches.crashed:
            crashes += 1
            batches.crash(monkeypatch)
            # The lock of the one that crashed runs out.
            await batches.context.queue.servers.of(0).delete(keys.first("batch_lock", batch.id))
    assert crashes
    assert (found.status, found.completed, found.failed) == (BatchStatus.COMPLETED, 392, 8)
    await check_sums(batches, found, set())
    assert await batches.jobs() == [], "the jobs of the last commit before a crash stay"


def crash_at(monkeypatch: pytest.MonkeyPatch, batches: Batches, draw: random.Random) -> None:
    """Calls of the owner fail before or after what they do, one in about eight."""
    context, left = batches.context, draw.randint(3, 12)
    for where, name in (
        (context.records, "change"),
        (context.files.storage, "write_bytes"),
        (context.queue, "submit"),
        (context.queue, "delete"),
        (context.queue, "get"),
        (context.records, "read"),
    ):
        original = getattr(where, name)

        async def call(*words: Any, _original: Any = original, **rest: Any) -> Any:
            nonlocal left
            left -= 1
            if left:
                return await _original(*words, **rest)
            left, batches.crashed = draw.randint(3, 12), True
            if draw.random() < 0.5:
                await _original(*words, **rest)
            raise Crash

        monkeypatch.setattr(where, name, call)
