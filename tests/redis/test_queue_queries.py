"""What is read of a job's log."""

from __future__ import annotations

from shared.store.queue import Queue
from tests.store.conftest import (
    TENANT,
    claim,
    emit,
    log_entries,
    log_flush,
    output,
    submit,
)


async def test_entries_of_the_log_and_of_the_step_log_follow_each_other(queue: Queue) -> None:
    await submit(queue)
    (job,) = await claim(queue)
    outputs = [output(job, seq, str(seq)) for seq in range(1, 7)]
    for seq, each in enumerate(outputs, 1):
        # Each is put into the log with the one after it.
        log_flushes = [log_flush(outputs[seq - 2], seq - 1)] if seq > 1 else []
        await emit(queue, [each], log_flushes=log_flushes)
    texts = {n: [e.items[0] for e in await log_entries(queue, job.id, n)] for n in range(7)}
    assert texts == {n: [b"%d" % seq for seq in range(n + 1, 7)] for n in range(7)}
    last = await queue.last_entry(job.id)
    assert last is not None
    assert (last.seq, last.items, last.end) == (6, (b"6",), "")


async def test_entries_behind_a_number_and_the_last_one(queue: Queue) -> None:
    job = await submit(queue)
    assert await log_entries(queue, job.id, 0) == []
    assert await queue.last_entry(job.id) is None
    await queue.cancel(job.id, TENANT)
    assert [e.seq for e in await log_entries(queue, job.id, 0)] == [1]
    assert await log_entries(queue, job.id, 1) == []
    last = await queue.last_entry(job.id)
    assert last is not None
    assert (last.seq, last.end) == (1, "cancelled")
