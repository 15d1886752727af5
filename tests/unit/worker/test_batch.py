"""A batch: which log flushes leave with a step, and which jobs are removed when a lease is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from shared.job.job_log import parse_segments
from shared.job.step_log import FLUSH_AFTER
from tests.unit.steps import parse_step
from tests.unit.worker.buffers import FENCE_TOKEN, RESULT, make_buffer
from worker.core.emit_batch import DISCARDED, Batch, FlushSchedule, PendingResult
from worker.core.output_buffer import OutputBuffer


class Shard:
    """The steps of one shard."""

    def __init__(self) -> None:
        self.schedule = FlushSchedule()
        self.others = 0

    def step(self, *buffers: OutputBuffer, finish: Sequence[OutputBuffer] = ()) -> Batch:
        """A step with output of these buffers; those in `finish` end with it."""
        batch = Batch()
        for buffer in buffers:
            buffer.chunk(b"x")
        for buffer in dict.fromkeys((*buffers, *finish)):
            output = buffer.take(RESULT if buffer in finish else None)
            assert output is not None
            batch.outputs.append(output)
        batch.close(self.schedule)
        return batch

    def steps_of_others(self, count: int) -> list[Batch]:
        """Steps with output of other jobs, a new one each time."""
        batches = []
        for _ in range(count):
            self.others += 1
            batches.append(self.step(make_buffer(f"other-{self.others}")))
        return batches


def log_flushes(batch: Batch) -> dict[str, list[int]]:
    """The numbers of the entries that the batch flushes, by job."""
    return parse_step(batch.step()).log_flushes


def flushes_by_step(batches: Sequence[Batch], job_id: str = "a") -> dict[int, list[int]]:
    """The numbers of the entries of a job that each step flushes; steps count from 1."""
    found = {n: log_flushes(batch).get(job_id, []) for n, batch in enumerate(batches, 1)}
    return {n: numbers for n, numbers in found.items() if numbers}


def test_the_first_entry_is_flushed_by_the_call_that_publishes_it() -> None:
    """A job whose log is empty has shown nothing to anyone, so it may be started anew."""
    shard, buffer = Shard(), make_buffer(log_started=False)
    batches = [shard.step(buffer) for _ in range(FLUSH_AFTER + 1)]
    assert flushes_by_step(batches) == {
        1: [1],
        FLUSH_AFTER + 1: list(range(2, FLUSH_AFTER + 2)),
    }


def test_entries_are_flushed_together() -> None:
    shard, buffer = Shard(), make_buffer()
    batches = [shard.step(buffer) for _ in range(3 * FLUSH_AFTER)]
    assert flushes_by_step(batches) == {
        last: list(range(last - FLUSH_AFTER + 1, last + 1))
        for last in (FLUSH_AFTER, 2 * FLUSH_AFTER, 3 * FLUSH_AFTER)
    }


def test_a_flush_contains_the_entries_that_were_published() -> None:
    shard, buffer = Shard(), make_buffer()
    parts = [parse_step(shard.step(buffer).step()) for _ in range(FLUSH_AFTER)]
    published = [part.outputs["a"].entry for part in parts]
    assert parse_segments([parts[-1].segments["a"]]) == published


def test_the_entry_of_a_job_that_pauses_is_flushed_in_time() -> None:
    shard, buffer = Shard(), make_buffer()
    batches = [shard.step(buffer), *shard.steps_of_others(FLUSH_AFTER - 1)]
    assert flushes_by_step(batches) == {FLUSH_AFTER: [1]}
    # Nothing is left unflushed, so the next entry has a schedule of its own.
    batches = [*shard.steps_of_others(5), shard.step(buffer)]
    batches += shard.steps_of_others(FLUSH_AFTER - 1)
    assert flushes_by_step(batches) == {5 + FLUSH_AFTER: [2]}


def test_a_result_carries_the_unflushed_entries() -> None:
    shard, buffer = Shard(), make_buffer()
    for _ in range(FLUSH_AFTER + 2):
        shard.step(buffer)
    end = parse_step(shard.step(buffer, finish=[buffer]).step()).outputs["a"].end
    assert end
    assert [entry.seq for entry in end.before] == [FLUSH_AFTER + n for n in (1, 2, 3)]
    assert end.seq == FLUSH_AFTER + 4
    assert flushes_by_step(shard.steps_of_others(2 * FLUSH_AFTER)) == {}


def test_the_result_of_a_job_whose_log_is_complete_carries_no_entries() -> None:
    shard, buffer = Shard(), make_buffer()
    for _ in range(FLUSH_AFTER):
        shard.step(buffer)
    end = parse_step(shard.step(finish=[buffer]).step()).outputs["a"].end
    assert end
    assert (end.segment, end.seq) == (b"", FLUSH_AFTER + 1)


def test_entries_that_are_due_in_the_step_of_the_result_are_sent_once() -> None:
    shard, buffer = Shard(), make_buffer()
    for _ in range(FLUSH_AFTER - 1):
        shard.step(buffer)
    batch = shard.step(buffer, finish=[buffer])
    end = parse_step(batch.step()).outputs["a"].end
    assert end
    assert [entry.seq for entry in end.before] == list(range(1, FLUSH_AFTER + 1))
    assert log_flushes(batch) == {}


@pytest.mark.parametrize("stream", [True, False])
def test_a_job_that_ends_with_its_first_entry_sends_it_with_its_result(stream: bool) -> None:
    shard, buffer = Shard(), make_buffer(log_started=False, stream=stream)
    batch = shard.step(buffer, finish=[buffer])
    end = parse_step(batch.step()).outputs["a"].end
    assert end
    assert [entry.seq for entry in end.before] == [1]
    assert log_flushes(batch) == {}


def test_the_result_of_a_job_without_subscribers_is_only_logged() -> None:
    buffer = make_buffer(watchers="")
    step = Shard().step(buffer, finish=[buffer]).step()
    end = parse_step(step).outputs["a"].end
    assert end
    assert ([entry.seq for entry in end.before], end.seq) == ([1], 2)
    assert (step.frame_sizes, step.frames, step.messages) == (b"", b"", [])


def test_a_discarded_buffer_is_not_flushed() -> None:
    shard, lost, other = Shard(), make_buffer("lost"), make_buffer("other")
    shard.step(lost, other)
    shard.steps_of_others(FLUSH_AFTER - 2)
    lost.discarded = True
    assert log_flushes(shard.step(other)) == {"other": [1, 2]}


# --- the fencing token ---


def test_a_batch_is_valid_under_the_token_that_all_of_its_jobs_have() -> None:
    batch = Shard().step(make_buffer("a"), make_buffer("b"))
    assert batch.valid_under(FENCE_TOKEN)
    assert not batch.valid_under("another")
    mixed = Shard().step(make_buffer("a"), make_buffer("b", fence_token="another"))
    assert not mixed.valid_under(FENCE_TOKEN)


def test_without_a_token_no_batch_is_valid() -> None:
    assert not Shard().step(make_buffer(fence_token="")).valid_under("")


def test_jobs_with_an_older_token_are_dropped_and_discarded() -> None:
    held, stale = make_buffer("held"), make_buffer("stale", fence_token="older")
    batch = Shard().step(held, stale)
    batch.drop_stale(FENCE_TOKEN)
    assert set(parse_step(batch.step()).outputs) == {"held"}
    assert (held.discarded, stale.discarded) == (False, True)
    assert batch.valid_under(FENCE_TOKEN)


async def test_the_result_of_a_dropped_job_has_the_outcome_discarded() -> None:
    buffer = make_buffer(fence_token="older")
    batch = Shard().step(finish=[buffer])
    pending = PendingResult(RESULT, asyncio.get_running_loop().create_future())
    batch.pending_results[buffer] = pending
    batch.drop_stale(FENCE_TOKEN)
    assert await pending.outcome == DISCARDED
    assert batch.pending_results == {}
    assert batch.empty


def test_a_due_flush_of_a_dropped_job_is_dropped_and_others_stay() -> None:
    shard, lost, paused = Shard(), make_buffer("lost"), make_buffer("paused")
    shard.step(lost, paused)
    shard.steps_of_others(FLUSH_AFTER - 2)
    last = make_buffer("last", fence_token="older")
    batch = shard.step(last)
    assert set(log_flushes(batch)) == {"lost", "paused"}
    lost.fence_token = "older"
    batch.drop_stale(FENCE_TOKEN)
    assert log_flushes(batch) == {"paused": [1]}
    assert not batch.empty


async def test_an_outcome_is_set_once_and_may_have_no_waiter() -> None:
    pending = PendingResult(RESULT, asyncio.get_running_loop().create_future())
    pending.outcome.cancel()
    pending.resolve("ok")
    assert pending.outcome.cancelled()
