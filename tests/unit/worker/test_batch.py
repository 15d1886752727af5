"""A batch: which log flushes leave with a step."""

from __future__ import annotations

from collections.abc import Sequence

from shared.job.step_log import FLUSH_AFTER
from tests.unit.steps import parse_step
from tests.unit.worker.buffers import RESULT, make_buffer
from worker.core.emit_batch import Batch, FlushSchedule
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


def test_entries_that_are_due_in_the_step_of_the_result_are_sent_once() -> None:
    shard, buffer = Shard(), make_buffer()
    for _ in range(FLUSH_AFTER - 1):
        shard.step(buffer)
    batch = shard.step(buffer, finish=[buffer])
    end = parse_step(batch.step()).outputs["a"].end
    assert end
    assert [entry.seq for entry in end.before] == list(range(1, FLUSH_AFTER + 1))
    assert log_flushes(batch) == {}


def test_the_result_of_a_job_without_subscribers_is_only_logged() -> None:
    buffer = make_buffer(watchers="")
    step = Shard().step(buffer, finish=[buffer]).step()
    end = parse_step(step).outputs["a"].end
    assert end
    assert ([entry.seq for entry in end.before], end.seq) == ([1], 2)
    assert (step.frame_sizes, step.frames, step.messages) == (b"", b"", [])
