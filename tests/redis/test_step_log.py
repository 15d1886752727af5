"""The step log: a worker's output is read, kept and fenced, though it is written once per step."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from redis import Redis

from shared.job.frames import DeltaDecoder, FrameKind, encode, entry_of
from shared.job.job import LeasedJob
from shared.job.job_log import Delta, Entry, pack_segment, read_journal
from shared.job.record import read_lease
from shared.job.replies import Fenced, Renewal
from shared.job.states import JobState
from shared.job.step_log import FLUSH_AFTER, STEPS, JobOutput, LogFlush
from shared.platform.metrics.worker import WorkerMetrics
from shared.platform.tasks import end
from shared.store.interface import StoreTimeout
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.scripts.emit import Step, make_step
from shared.store.servers import Servers
from tests.harness.servers import one_redis_only
from tests.redis.conftest import (
    GATEWAY,
    LEASE_S,
    POOL,
    TENANT,
    WORKER,
    ChannelSubscriber,
    answer,
    claim,
    claim_one,
    decode,
    emit,
    emit_token,
    end_without_output,
    entry_output,
    expire_lease,
    finish,
    lease,
    log_entries,
    next_fence_token,
    output,
    submit,
)
from worker.core import publisher as publisher_module
from worker.core.lease import Lease
from worker.core.membership import Membership
from worker.core.output_buffer import OutputBuffer
from worker.core.publisher import Publisher

DEADLINE_S = 60.0


def segment(outputs: Sequence[JobOutput], first: int) -> LogFlush:
    """The flush of outputs from number `first` on into the job log."""
    job_id = outputs[0][0].job.id
    entries = [entry_of(frame, job_id, seq) for seq, (_, frame, _) in enumerate(outputs, first)]
    return LogFlush(job_id, pack_segment(first, entries))


def entry_texts(entries: Sequence[Entry]) -> list[bytes]:
    """The texts of a streamed job's entries; b"lost" for lost ones, the state for the end."""
    return [b"lost" if e.lost else e.end.encode() or b"".join(map(bytes, e.items)) for e in entries]


def n_steps(store: Redis, worker: str = WORKER, shard: int = 0) -> int:
    length: Any = store.llen(keys.steps(shard, worker))
    assert length % 2 == 0
    return int(length) // 2


# --- reading ---


async def test_output_that_is_only_in_the_step_log_is_read(queue: JobQueue, store: Redis) -> None:
    job = await lease(queue)
    assert await log_entries(queue, job.id, 0) == []
    assert await queue.last_entry(job.id) is None
    for seq in range(1, 6):
        await emit_token(queue, job, seq, str(seq))
        last = await queue.last_entry(job.id)
        assert last is not None
        assert (last.seq, last.items) == (seq, (b"%d" % seq,))
    assert not store.exists(keys.log(0, job.id))
    whole = await log_entries(queue, job.id, 0)
    assert entry_texts(whole) == [b"1", b"2", b"3", b"4", b"5"]
    for after in range(7):
        assert await log_entries(queue, job.id, after) == whole[after:]


@pytest.mark.parametrize("cuts", [(1,), (5,), (11,), (12,), (3, 4, 9), tuple(range(1, 13))])
async def test_log_and_step_log_are_one_wherever_the_log_ends(
    queue: JobQueue, cuts: tuple[int, ...]
) -> None:
    """`cuts`: numbers of the last entries of the log's segments."""
    for _ in range(2):
        await submit(queue)
    job, other = await claim(queue)
    outputs = [output(job, seq, str(seq)) for seq in range(1, 13)]
    begun = 1
    for seq, each in enumerate(outputs, 1):
        await emit(queue, [output(other, seq), each])
        if seq in cuts:
            await emit(queue, [], log_flushes=[segment(outputs[begun - 1 : seq], begun)])
            begun = seq + 1
    whole = await log_entries(queue, job.id, 0)
    assert [e.seq for e in whole] == list(range(1, 13))
    assert entry_texts(whole) == [b"%d" % seq for seq in range(1, 13)]
    for after in range(15):
        assert await log_entries(queue, job.id, after) == whole[after:]
    assert await queue.last_entry(job.id) == whole[-1]
    for most_bytes in (1, 30, 10_000):
        read: list[Entry] = []
        reads, more = 0, True
        while more:
            _, entries, more, _ = await queue.read_log(job.id, len(read), most_bytes)
            read += entries
            reads += 1
        assert read == whole
        assert reads == {1: len(cuts), 10_000: 1}.get(most_bytes, reads)


def fill_log(store: Redis, job: LeasedJob, n_entries: int, chance: random.Random) -> list[bytes]:
    """Put segments of one to three entries into the job's log; returns them."""
    segments: list[bytes] = []
    first = 1
    while first <= n_entries:
        last = min(n_entries, first + chance.randint(0, 2))
        outputs = [output(job, seq, str(seq)) for seq in range(first, last + 1)]
        segments.append(segment(outputs, first).segment)
        first = last + 1
    store.rpush(keys.log(0, job.id), *segments)
    return segments


async def test_a_long_log_is_read_in_parts_from_any_entry_on(queue: JobQueue, store: Redis) -> None:
    job = await lease(queue)
    fill_log(store, job, 100, random.Random(1))
    numbers = list(range(1, 101))
    for after in range(103):
        for most_bytes in (1, 200, 100_000):
            read: list[int] = []
            more = True
            while more:
                at = read[-1] if read else after
                _, entries, more, _ = await queue.read_log(job.id, at, most_bytes)
                assert entries or not more, "each part has an entry that the reader lacks"
                read += [entry.seq for entry in entries]
            assert read == numbers[after:]


async def test_a_number_of_any_size_is_read(queue: JobQueue) -> None:
    """A larger number takes more bytes in a frame."""
    job = await lease(queue)
    for seq in (0x7F, 0xFF, 0xFFFF):
        outputs = [output(job, seq + more, str(seq + more)) for more in range(3)]
        for each in outputs:
            await emit(queue, [each])
        from_the_steps = await log_entries(queue, job.id, seq - 1)
        assert [e.seq for e in from_the_steps] == [seq, seq + 1, seq + 2]
        assert entry_texts(from_the_steps) == [b"%d" % (seq + more) for more in range(3)]
        await emit(queue, [], log_flushes=[segment(outputs, seq)])
        assert await log_entries(queue, job.id, seq - 1) == from_the_steps


async def test_each_job_and_each_worker_has_its_own_output(queue: JobQueue) -> None:
    for _ in range(4):
        await submit(queue)
    mine, others = await claim(queue, 2), await claim(queue, 2, worker="w-2")
    for seq in range(1, 4):
        await emit(queue, [output(job, seq, f"1{job.id}{seq}") for job in mine])
        await emit(queue, [output(job, seq, f"2{job.id}{seq}") for job in reversed(others)])
    for worker, jobs in ((1, mine), (2, others)):
        for job in jobs:
            expected = [f"{worker}{job.id}{seq}".encode() for seq in range(1, 4)]
            assert entry_texts(await log_entries(queue, job.id, 0)) == expected


# --- text that looks like a frame ---


def forged_frame(job: LeasedJob, seq: int) -> bytes:
    """A frame of the job as it would be in a step."""
    return encode(job.id, seq, FrameKind.CHUNK, (b"counterfeit",))


@pytest.mark.parametrize("known", [False, True])
async def test_text_that_looks_like_another_jobs_frame_is_not_read_as_one(
    queue: JobQueue, known: bool
) -> None:
    for _ in range(2):
        await submit(queue)
    victim, forger = await claim(queue)
    forged = forged_frame(victim, 1 + known)
    if known:
        await emit_token(queue, victim, 1, "mine")
    await emit(queue, [entry_output(forger, 1, (forged,), ((0, 0, (1,), forged),))])
    await emit(queue, [entry_output(forger, 2, (forged + forged, (1, 2), forged), None)])
    assert entry_texts(await log_entries(queue, victim.id, 0)) == [b"mine"] * known
    await queue.cancel(victim.id, TENANT)
    assert entry_texts(await log_entries(queue, victim.id, 0)) == [b"mine"] * known + [b"cancelled"]
    assert [e.items for e in await log_entries(queue, forger.id, 0)] == [
        (forged,),
        (forged + forged, (1, 2), forged),
    ]


@pytest.mark.parametrize("place", ["before", "behind", "around"])
async def test_a_frame_among_such_texts_is_found(queue: JobQueue, place: str) -> None:
    for _ in range(3):
        await submit(queue)
    victim, forger, another = await claim(queue)
    forged = [entry_output(x, 1, (forged_frame(victim, 1),), None) for x in (forger, another)]
    true = output(victim, 1, "true")
    steps = {"before": [true, *forged], "behind": [*forged, true]}
    await emit(queue, steps.get(place, [forged[0], true, forged[1]]))
    assert entry_texts(await log_entries(queue, victim.id, 0)) == [b"true"]


async def test_text_that_looks_like_the_jobs_next_frame_is_not_read_as_one(queue: JobQueue) -> None:
    job = await lease(queue)
    spelt = forged_frame(job, 2)
    await emit(queue, [entry_output(job, 1, (spelt,), ((0, 0, (1,), spelt),))])
    assert [(e.seq, e.items) for e in await log_entries(queue, job.id, 0)] == [(1, (spelt,))]
    await emit_token(queue, job, 2, "true")
    assert entry_texts(await log_entries(queue, job.id, 1)) == [b"true"]


async def test_text_may_contain_the_head_of_a_frame(queue: JobQueue) -> None:
    """U+25BF ends with the bytes that a frame begins with."""
    for _ in range(2):
        await submit(queue)
    victim, forger = await claim(queue)
    spelt = f"\u25bf{victim.id}\1\1\0"
    assert forged_frame(victim, 1)[: len(victim.id) + 3] in spelt.encode()
    await emit(queue, [output(forger, 1, spelt), output(victim, 1, "true")])
    assert entry_texts(await log_entries(queue, victim.id, 0)) == [b"true"]
    assert entry_texts(await log_entries(queue, forger.id, 0)) == [spelt.encode()]


# --- generations ---


async def test_output_of_an_earlier_generation_is_read_from_the_log_only(
    queue: JobQueue, store: Redis
) -> None:
    """The same job on the same worker, whose step log still has the output of its first attempt."""
    old = await lease(queue, stream=False)
    for seq in (1, 2, 3):
        await emit(queue, [entry_output(old, seq, None, (("old", seq),))])
    assert await queue.release([old], "drained", blame=False) == {old.id: "queued"}
    new = await claim_one(queue)
    assert (new.id, new.generation) == (old.id, old.generation + 1)
    assert n_steps(store) == 3
    past: list[Any] = [((b"old", seq),) for seq in (1, 2, 3)]
    assert [e.journal for e in await log_entries(queue, new.id, 0)] == past
    store.ltrim(keys.log(0, new.id), 1, -1)  # whatever has become of the log
    assert await log_entries(queue, new.id, 0) == []


async def test_a_later_generation_continues_in_the_step_log(queue: JobQueue, store: Redis) -> None:
    old = await lease(queue, stream=False)
    for seq in (1, 2, 3):
        await emit(queue, [entry_output(old, seq, None, (("old", seq),))])
    await queue.release([old], "drained", blame=False)
    new = await claim_one(queue)
    for seq in (4, 5):
        await emit(queue, [entry_output(new, seq, None, (("new", seq),))])
    journals: list[Any] = [
        *(((b"old", seq),) for seq in (1, 2, 3)),
        *(((b"new", seq),) for seq in (4, 5)),
    ]
    for after in range(6):
        found = await log_entries(queue, new.id, after)
        assert [e.journal for e in found] == journals[after:]
    last = await queue.last_entry(new.id)
    assert last is not None
    assert (last.seq, last.journal) == (5, ((b"new", 5),))
    await queue.cancel(new.id, TENANT)
    entries = await log_entries(queue, new.id, 0)
    assert [(e.journal, e.end) for e in entries] == [
        *((journal, "") for journal in journals),
        (None, "cancelled"),
    ]


async def test_output_of_an_earlier_generation_is_refused(queue: JobQueue) -> None:
    old = await lease(queue, stream=False)
    await queue.release([old], "drained", blame=False)
    new = await claim_one(queue)
    assert await emit_token(queue, old, 1) == {old.id: "in_progress"}
    assert await emit_token(queue, new, 1) == {}
    assert len(await log_entries(queue, new.id, 0)) == 1


# --- the end of a job flushes its worker's output ---

Ender = Callable[[JobQueue, Redis, LeasedJob], Awaitable[Any]]


async def cancel(queue: JobQueue, _: Redis, job: LeasedJob) -> None:
    await queue.cancel(job.id, TENANT)


async def expire(queue: JobQueue, store: Redis, job: LeasedJob) -> None:
    store.zadd(keys.base(0) + keys.DEADLINES, {job.id: 1})
    await queue.expire(0, 100)


async def reap(queue: JobQueue, store: Redis, job: LeasedJob) -> None:
    expire_lease(store, job)
    await queue.reap(0, 1.0)


async def release(queue: JobQueue, _: Redis, job: LeasedJob) -> None:
    await queue.release([job], "drained", blame=False)


async def reject_unreceived(queue: JobQueue, _: Redis, job: LeasedJob) -> None:
    await queue.reject_unreceived(POOL, WORKER, [], 0.0)


ENDERS = [cancel, expire, reap, release, reject_unreceived]
END_STATES: dict[Ender, str] = {cancel: "cancelled", expire: "expired"}
"""The others take the job from its worker: it is queued again, with its log."""


@pytest.mark.parametrize("flushed", [0, 1, 3])
@pytest.mark.parametrize("ender", ENDERS)
async def test_ending_a_job_flushes_its_output(
    queue: JobQueue, store: Redis, gateway: ChannelSubscriber, ender: Ender, flushed: int
) -> None:
    job = await lease(queue, deadline_s=60)
    outputs = [output(job, seq, str(seq)) for seq in (1, 2, 3)]
    for each in outputs:
        await emit(queue, [each])
    if flushed:
        await emit(queue, [], log_flushes=[segment(outputs[:flushed], 1)])
    gateway.messages()
    await ender(queue, store, job)
    store.delete(keys.steps(0, WORKER))
    state = END_STATES.get(ender, "")
    end = [state.encode()] if state else []
    assert entry_texts(await log_entries(queue, job.id, 0)) == [b"1", b"2", b"3", *end]
    ended = [(4, FrameKind.ENDED)] if state else []
    assert [frame[1:3] for frame in gateway.frames()] == ended
    last = await queue.last_entry(job.id)
    assert last is not None
    assert (last.seq, last.end) == ((4, state) if state else (3, ""))
    ttl_ms: Any = store.pttl(keys.log(0, job.id))
    assert 0 < ttl_ms <= 60_000 if state else ttl_ms == -1


async def test_a_job_without_attempts_left_keeps_its_output(queue: JobQueue, store: Redis) -> None:
    job = await lease(queue, stream=False, max_attempts=1)
    await emit_token(queue, job, 1)
    await reap(queue, store, job)
    await reap(queue, store, await claim_one(queue))  # without progress
    store.delete(keys.steps(0, WORKER))
    assert [(e.seq, e.end) for e in await log_entries(queue, job.id, 0)] == [(1, ""), (2, "failed")]


async def test_ending_several_jobs_of_one_worker_flushes_each(
    queue: JobQueue, store: Redis
) -> None:
    for _ in range(3):
        await submit(queue)
    jobs = await claim(queue)
    for seq in (1, 2):
        await emit(queue, [output(job, seq, f"{job.id}{seq}") for job in jobs])
    for job in jobs:
        expire_lease(store, job)
    await queue.reap(0, 1.0)
    store.delete(keys.steps(0, WORKER))
    for job in jobs:
        expected = [f"{job.id}1".encode(), f"{job.id}2".encode()]
        assert entry_texts(await log_entries(queue, job.id, 0)) == expected


@pytest.mark.parametrize("first", range(3))
async def test_text_that_looks_like_frames_is_no_output_of_jobs_that_end_together(
    queue: JobQueue, store: Redis, first: int
) -> None:
    """The step log is read once for all of them."""
    for _ in range(3):
        await submit(queue)
    jobs = await claim(queue)
    texts: dict[str, list[bytes]] = {job.id: [] for job in jobs}
    for seq in (1, 2, 3):
        outputs = []
        for n, job in enumerate(jobs):
            text = b"".join(forged_frame(other, seq) for other in jobs[n:] + jobs[:n])
            texts[job.id].append(text)
            outputs.append(entry_output(job, seq, (text,), None))
        await emit(queue, outputs)
    for job in [*jobs[first:], *jobs[:first]]:
        await queue.release([job], "alone", blame=False) if first == 2 else expire_lease(store, job)
    await queue.reap(0, 1.0)
    store.delete(keys.steps(0, WORKER))
    for job in jobs:
        assert entry_texts(await log_entries(queue, job.id, 0)) == texts[job.id]


# --- what Redis has lost ---


async def test_without_its_steps_a_log_holds_what_was_flushed(
    queue: JobQueue, store: Redis
) -> None:
    job = await lease(queue)
    outputs = [output(job, seq, str(seq)) for seq in range(1, 7)]
    for each in outputs[:2]:
        await emit(queue, [each])
    await emit(queue, [outputs[2]], log_flushes=[segment(outputs[:3], 1)])
    await emit(queue, [outputs[3]])
    store.delete(keys.steps(0, WORKER))
    assert entry_texts(await log_entries(queue, job.id, 0)) == [b"1", b"2", b"3"]
    await emit(queue, [outputs[4]])
    assert entry_texts(await log_entries(queue, job.id, 2)) == [b"3", b"lost", b"5"]
    # Its worker still has all entries.
    await emit(queue, [outputs[5]], log_flushes=[segment(outputs[3:], 4)])
    assert entry_texts(await log_entries(queue, job.id, 2)) == [b"3", b"4", b"5", b"6"]


@pytest.mark.parametrize("ender", ENDERS)
async def test_ending_a_job_with_lost_steps_leaves_a_hole(
    queue: JobQueue, store: Redis, ender: Ender
) -> None:
    job = await lease(queue, deadline_s=60)
    outputs = [output(job, seq, str(seq)) for seq in (1, 2, 3, 4)]
    await emit(queue, [outputs[0]], log_flushes=[segment(outputs[:1], 1)])
    await emit(queue, [outputs[1]])
    store.delete(keys.steps(0, WORKER))
    await emit(queue, [outputs[2]])
    await emit(queue, [outputs[3]])
    await ender(queue, store, job)
    state = END_STATES.get(ender, "failed")
    expected = [b"1", b"lost", b"3", b"4", state.encode()]
    assert entry_texts(await log_entries(queue, job.id, 0)) == expected


@pytest.mark.parametrize("after", range(12))
async def test_a_segment_that_is_lost_leaves_a_hole(
    queue: JobQueue, store: Redis, after: int
) -> None:
    job = await lease(queue)
    outputs = [output(job, seq, str(seq)) for seq in range(1, 10)]
    for each in outputs:
        await emit(queue, [each])
    for first in (1, 3, 5, 7):
        await emit(queue, [], log_flushes=[segment(outputs[first - 1 : first + 1], first)])
    log = keys.log(0, job.id)
    second: Any = segment(outputs[2:4], 3).segment
    store.lrem(log, 1, second)
    expected = [b"1", b"2", b"lost", b"lost", b"5", b"6", b"7", b"8", b"9"]
    assert entry_texts(await log_entries(queue, job.id, after)) == expected[after:]
    store.ltrim(log, -1, -1)
    expected[:6] = [b"lost"] * 6
    assert entry_texts(await log_entries(queue, job.id, after)) == expected[after:]
    assert entry_texts([e for e in [await queue.last_entry(job.id)] if e]) == [b"9"]


async def test_a_log_that_is_lost_is_read_as_far_as_the_steps_go(
    queue: JobQueue, store: Redis
) -> None:
    job = await lease(queue)
    n = STEPS + 5
    outputs = [output(job, seq, str(seq)) for seq in range(1, n + 1)]
    for each in outputs:
        await emit(queue, [each])
    await emit(queue, [], log_flushes=[segment(outputs[:FLUSH_AFTER], 1)])
    store.delete(keys.log(0, job.id))
    expected = [b"lost"] * 5 + [b"%d" % seq for seq in range(6, n + 1)]
    assert entry_texts(await log_entries(queue, job.id, 0)) == expected
    await finish(queue, job, n + 1, answer())
    assert entry_texts(await log_entries(queue, job.id, 0)) == [b"lost"] * n + [b"failed"]


async def test_steps_after_a_lost_one_are_read(queue: JobQueue, store: Redis) -> None:
    """Redis was killed and has lost its last writes, and the worker has gone on."""
    job = await lease(queue)
    for seq in range(1, 6):
        await emit_token(queue, job, seq, str(seq))
    steps: Any = store.lrange(keys.steps(0, WORKER), 0, -1)
    store.delete(keys.steps(0, WORKER))
    store.rpush(keys.steps(0, WORKER), *steps[:4], *steps[6:])  # without the third
    whole = [b"1", b"2", b"lost", b"4", b"5"]
    for after in range(6):
        assert entry_texts(await log_entries(queue, job.id, after)) == whole[after:]
    assert entry_texts([e for e in [await queue.last_entry(job.id)] if e]) == [b"5"]
    await queue.cancel(job.id, TENANT)
    assert entry_texts(await log_entries(queue, job.id, 0)) == [*whole, b"cancelled"]


async def test_a_call_that_is_applied_late_does_not_change_a_log(
    queue: JobQueue, store: Redis
) -> None:
    """The call was repeated on another connection, then the first one arrived after all."""
    fence_token = await next_fence_token(queue)
    for _ in range(2):
        await submit(queue)
    pausing, ends = await claim(queue)
    outputs = {job.id: [output(job, seq) for seq in (1, 2, 3)] for job in (pausing, ends)}
    steps = [
        make_step(
            [outputs[job.id][n] for job in (pausing, ends)],
            [segment(outputs[job.id][n : n + 1], n + 1) for job in (pausing, ends)],
        )
        for n in range(3)
    ]
    for step in steps:
        await queue.emit(0, WORKER, fence_token, step)
    await queue.emit(0, WORKER, fence_token, make_step([end_without_output(ends, 4, answer())]))
    assert await queue.emit(0, WORKER, fence_token, steps[0]) == {}
    last = [await queue.last_entry(job.id) for job in (pausing, ends)]
    assert [entry and (entry.seq, entry.end) for entry in last] == [(3, ""), (4, "completed")]
    await queue.cancel(pausing.id, TENANT)
    assert [e.seq for e in await log_entries(queue, pausing.id, 0)] == [1, 2, 3, 4]
    assert [e.seq for e in await log_entries(queue, ends.id, 0)] == [1, 2, 3, 4]


# --- the fence ---


async def watch_elsewhere(queue: JobQueue, _: Redis, job: LeasedJob) -> None:
    await queue.watch(job.id, "gw-2", follow=False)


async def follow(queue: JobQueue, _: Redis, job: LeasedJob) -> None:
    await queue.watch(job.id, GATEWAY, follow=True)


async def follow_elsewhere(queue: JobQueue, _: Redis, job: LeasedJob) -> None:
    await queue.watch(job.id, "gw-2", follow=True)


@pytest.mark.parametrize("change", [*ENDERS, watch_elsewhere, follow, follow_elsewhere])
async def test_every_change_to_a_job_invalidates_its_workers_fence(
    queue: JobQueue, store: Redis, change: Ender
) -> None:
    """The fence of the job's worker, for all its jobs; no other worker's."""
    fence_tokens = {worker: await next_fence_token(queue, worker) for worker in (WORKER, "w-2")}
    for _ in range(3):
        await submit(queue, stream=False, deadline_s=60)
    (changed, other), (foreign,) = await claim(queue, 2), await claim(queue, 1, worker="w-2")
    assert {job.fence_token for job in (changed, other)} == {fence_tokens[WORKER]}
    await queue.emit(0, WORKER, fence_tokens[WORKER], make_step([output(other, 1)]))
    await change(queue, store, changed)
    step = make_step([output(other, 2)])
    for again in (False, True):
        with pytest.raises(Fenced):
            await queue.emit(0, WORKER, fence_tokens[WORKER], step, repeated=again)
    assert n_steps(store) == 1
    assert await queue.emit(0, "w-2", fence_tokens["w-2"], make_step([output(foreign, 1)])) == {}
    renewal = await queue.renew(0, WORKER, fence_tokens[WORKER], LEASE_S, [other])
    assert renewal.fence_token not in {"", *fence_tokens.values()}


async def watch_again(queue: JobQueue, _: Redis, job: LeasedJob) -> None:
    await queue.watch(job.id, GATEWAY, follow=False)


async def follow_again(queue: JobQueue, _: Redis, job: LeasedJob) -> None:
    await queue.watch(job.id, GATEWAY, follow=True)


async def end_others(queue: JobQueue, store: Redis, job: LeasedJob) -> None:
    """End queued jobs, jobs of another worker, and jobs that have ended."""
    for ender in ENDERS[:-1]:
        await submit(queue, deadline_s=60)
        await ender(queue, store, await claim_one(queue, worker="w-2"))
        with contextlib.suppress(ValueError):  # it is queued again
            await queue.cancel((await claim_one(queue, worker="w-2")).id, TENANT)
    await queue.reject_unreceived(POOL, "w-2", [], 0.0)
    waits = await submit(queue)
    await queue.watch(waits.id, "gw-2", follow=True)
    await queue.cancel(waits.id, TENANT)
    for follow in (False, True):
        await queue.watch(waits.id, "gw-3", follow=follow)
    await queue.cancel(waits.id, TENANT)


async def read_only_calls(queue: JobQueue, _: Redis, job: LeasedJob) -> None:
    """Calls that are refused, or only read."""
    assert await queue.cancel(job.id, "another-tenant") is None
    assert await queue.reap(0, LEASE_S) == {}
    assert await queue.reject_unreceived(POOL, WORKER, [job.id], 0.0) == {}
    await queue.expire(0, 100)
    await queue.get(job.id)
    await log_entries(queue, job.id, 0)
    await queue.last_entry(job.id)


async def claim_more(queue: JobQueue, _: Redis, job: LeasedJob) -> None:
    """Get further jobs, by a claim and by an assignment."""
    await submit(queue)
    await claim_one(queue)
    await claim(queue, slots=1)
    await submit(queue)


@pytest.mark.parametrize(
    "change",
    [watch_again, follow_again, end_others, read_only_calls, claim_more],
    ids=lambda x: x.__name__,
)
async def test_calls_that_change_no_leased_job_keep_the_fence_token(
    queue: JobQueue, store: Redis, control: ChannelSubscriber, change: Ender
) -> None:
    job = await lease(queue, stream=False)
    await queue.watch(job.id, GATEWAY, follow=change is follow_again)
    fence_token = await next_fence_token(queue)
    await change(queue, store, job)
    assert await queue.emit(0, WORKER, fence_token, make_step([output(job, 1)])) == {}
    renewal = await queue.renew(0, WORKER, fence_token, LEASE_S, [job])
    assert (renewal.fence_token, renewal.lost) == (fence_token, {})


async def test_a_leased_job_has_the_fence_token_of_its_lease(
    queue: JobQueue, control: ChannelSubscriber
) -> None:
    assert (await lease(queue)).fence_token == ""
    fence_token = await next_fence_token(queue)
    claimed = await lease(queue)
    await claim(queue, slots=1)
    await submit(queue)
    (assigned,) = control.assigned(queue)
    assert claimed.fence_token == assigned.fence_token == fence_token


# --- the worker's side: publisher, lease and buffers as they are ---


class Flaky(JobQueue):
    """A queue with faults: functions in `before` run before calls of emit, and `lose` returns what
    is lost of a call: "call", "reply" or nothing."""

    def __init__(self, servers: Servers) -> None:
        super().__init__(servers)
        self.before: list[Callable[[], Awaitable[Any]]] = []
        """One for each of the next calls of emit."""
        self.lose: Callable[[], str] = lambda: ""
        self.stored: set[tuple[bytes, int, int]] = set()
        """Job, number and step of the frames whose storing was confirmed."""
        self.n_steps = 0
        self.n_calls = 0
        self.called = asyncio.Event()
        """Set at the end of each call."""
        self.renewals = 0

    async def emit(self, *args: Any, **options: Any) -> dict[str, str]:
        return cast(dict[str, str], await self._emit(args[3], super().emit, *args, **options))

    def start_emit(self, *args: Any, **options: Any) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._emit(args[3], super().start_emit, *args, **options))

    async def _emit(self, step: Step, call: Any, *args: Any, **options: Any) -> Any:
        if self.before:
            await self.before.pop(0)()
        reply = await self._disturbed(call, *args, **options)
        if reply is not None:  # it is not fenced
            self.n_steps += 1
            self.stored |= {(frame[0], frame[1], self.n_steps) for frame in decode(step.frames)}
        return reply

    async def renew(self, *args: Any, **options: Any) -> Renewal:
        self.renewals += 1
        return cast(Renewal, await self._disturbed(super().renew, *args, **options))

    async def _disturbed(self, call: Any, *args: Any, **options: Any) -> Any:
        self.n_calls += 1
        lost = self.lose()
        try:
            if lost == "call":
                raise StoreTimeout("the call is lost")
            reply = await call(*args, **options)
            if lost == "reply":
                raise StoreTimeout("the reply is lost")
        finally:
            self.called.set()
        return reply


class Worker:
    """A worker without an engine: the test produces its output."""

    def __init__(self, queue: Flaky, name: str = WORKER) -> None:
        self.queue = queue
        self.runs: dict[str, Any] = {}
        self.lost: dict[str, str] = {}
        self.produced: dict[str, list[str]] = {}
        """By lease id, the texts that Redis has stored."""
        self.lease = Lease(
            Membership(queue, POOL, name, LEASE_S),
            lambda: [run.buffer for run in self.runs.values()],
            self._on_lost,
        )
        self.publisher = Publisher(queue, WorkerMetrics(CollectorRegistry()), self.lease)
        self.task = asyncio.create_task(self.publisher.run())

    def _on_lost(self, job: LeasedJob, state: str) -> None:
        self.lost[job.lease_id] = state
        if job.id in self.runs and self.runs[job.id].job.lease_id == job.lease_id:
            self.runs[job.id].buffer.discarded = True

    def start(self, job: LeasedJob) -> OutputBuffer:
        """Start a run as worker/core/loop.py does."""
        if job.id in self.runs:
            self.runs[job.id].buffer.discarded = True
        buffer = OutputBuffer(job, self.publisher.notify)
        self.runs[job.id] = SimpleNamespace(job=job, buffer=buffer)
        self.produced[job.lease_id] = []
        return buffer

    async def resume(self, job: LeasedJob) -> OutputBuffer:
        """Start a run that continues the job's log, unless the job has ended."""
        buffer = self.start(job)
        entries = [e for e in await log_entries(self.queue, job.id, 0) if not e.end]
        for text in texts_in(buffer, entries):
            self.produced[job.lease_id].append(text)
            buffer._encoder.encode([chunk_of(text)])
        buffer._seq = len(entries)
        return buffer

    async def step(self, *senders: OutputBuffer) -> None:
        """Make an engine step with a token of each sender; returns when Redis has stored it."""
        begun = self.queue.n_steps
        for buffer in senders:
            produce(buffer, len(self.produced[buffer.job.lease_id]))
        self.publisher.on_step()
        async with asyncio.timeout(DEADLINE_S):
            while not all(buffer.discarded or self.is_stored(buffer, begun) for buffer in senders):
                self.queue.called.clear()
                await self.queue.called.wait()
                assert not self.task.done()
        for buffer in senders:
            if not buffer.discarded:
                texts = self.produced[buffer.job.lease_id]
                texts.append(token_text(buffer, len(texts)))

    def is_stored(self, buffer: OutputBuffer, begun: int) -> bool:
        """Whether the buffer's next entry is stored, in a step after number `begun`."""
        job_id, seq = buffer.job.id.encode(), len(self.produced[buffer.job.lease_id]) + 1
        return any(
            (job_id, seq, n) in self.queue.stored for n in range(begun + 1, self.queue.n_steps + 1)
        )

    async def finish(self, buffer: OutputBuffer, *, produces: bool = False) -> str:
        """End the job; `produces`: with a last token."""
        texts = self.produced[buffer.job.lease_id]
        if produces:
            produce(buffer, len(texts))
        async with asyncio.timeout(DEADLINE_S):
            outcome = await self.publisher.finish(buffer, answer())
        if outcome == "ok":
            texts += [token_text(buffer, len(texts))] * produces
        if self.runs[buffer.job.id].buffer is buffer:
            del self.runs[buffer.job.id]
        return outcome


def token_text(buffer: OutputBuffer, n: int) -> str:
    """The text of token `n` of a job; it contains the head of the job's own frames."""
    return f"{n}\u257f{buffer.job.id}"


def produce(buffer: OutputBuffer, n: int) -> None:
    buffer.delta(0, 0, [n], token_text(buffer, n))
    if buffer.job.stream:
        buffer.chunk(chunk_of(token_text(buffer, n)))


def chunk_of(text: str) -> bytes:
    return f'data: {{"text": "{text}"}}\n\n'.encode()


def texts_in(buffer: OutputBuffer, entries: Sequence[Entry]) -> list[str]:
    """The texts in a job's entries, from the first; asserts that none is missing."""
    decoder, texts = DeltaDecoder(), []
    for n, entry in enumerate(entries):
        assert (entry.seq, entry.lost, entry.end) == (n + 1, False, "")
        (delta,) = read_journal(entry.journal, entry.items)
        assert isinstance(delta, Delta)
        assert delta.token_ids == (n,)
        if buffer.job.stream:
            assert decoder.decode(entry.items) == chunk_of(delta.text)
        texts.append(delta.text)
    return texts


@pytest.fixture
async def flaky(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Flaky]:
    """A queue without faults until the test adds some."""
    monkeypatch.setattr(publisher_module, "_RETRY_CAP_S", 0.0)
    queue = Flaky(Servers(redis_url))
    yield queue
    await queue.close()
    await queue.servers.close()


@pytest.fixture
async def worker(flaky: Flaky) -> AsyncIterator[Worker]:
    worker = Worker(flaky)
    yield worker
    await end([worker.task])


async def test_an_entry_is_flushed_before_it_falls_out_of_the_step_log(
    flaky: Flaky, store: Redis, worker: Worker
) -> None:
    """With each number of steps between two tokens of a job, up to more than the log keeps."""
    for _ in range(2):
        await submit(flaky)
    steady, pausing = [worker.start(job) for job in await claim(flaky)]
    for pause in range(STEPS + 3):
        await worker.step(steady, pausing)
        for n in range(pause):
            await worker.step(steady)
            entries = await log_entries(flaky, pausing.job.id, 0)
            assert texts_in(pausing, entries) == worker.produced[pausing.job.lease_id], (pause, n)
    assert n_steps(store) == STEPS
    entries = await log_entries(flaky, steady.job.id, 0)
    assert texts_in(steady, entries) == worker.produced[steady.job.lease_id]
    for buffer in (steady, pausing):
        assert await worker.finish(buffer) == "ok"
    store.delete(keys.steps(0, WORKER))
    for buffer in (steady, pausing):
        *entries, end = await log_entries(flaky, buffer.job.id, 0)
        assert texts_in(buffer, entries) == worker.produced[buffer.job.lease_id]
        assert end.end == "completed"


async def test_the_logs_of_jobs_are_written_once_in_many_steps(
    flaky: Flaky, store: Redis, worker: Worker
) -> None:
    for _ in range(4):
        await submit(flaky)
    buffers = [worker.start(job) for job in await claim(flaky)]
    for _ in range(4 * FLUSH_AFTER):
        await worker.step(*buffers)
    for buffer in buffers:
        assert store.llen(keys.log(0, buffer.job.id)) == 4


async def test_a_call_whose_reply_was_lost_leaves_one_step(
    flaky: Flaky, store: Redis, gateway: ChannelSubscriber, worker: Worker
) -> None:
    buffer = worker.start(await lease(flaky))
    losses = ["", *["reply", "call"] * 3, ""]
    await worker.lease.renew(0)
    flaky.lose = lambda: losses.pop()
    for _ in range(5):
        if losses:
            await worker.step(buffer)
    assert losses == []
    assert n_steps(store) == len(worker.produced[buffer.job.lease_id]) == 2
    assert [frame[1] for frame in gateway.frames()] == [1, 2]


async def test_a_log_flush_is_made_though_the_job_sent_with_it_is_lost(
    flaky: Flaky, store: Redis, worker: Worker
) -> None:
    """The step is made again without that job, so it has nothing but the flush."""
    for _ in range(3):
        await submit(flaky)
    pausing, leaves, steady = [worker.start(job) for job in await claim(flaky)]
    await worker.step(pausing)
    for _ in range(FLUSH_AFTER - 2):
        await worker.step(steady)

    async def cancel() -> None:
        await flaky.cancel(leaves.job.id, TENANT)

    flaky.before = [cancel]
    await worker.step(leaves)
    for _ in range(STEPS):
        await worker.step(steady)
    assert texts_in(pausing, await log_entries(flaky, pausing.job.id, 0)) == [
        token_text(pausing, 0)
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_job_that_another_worker_holds_is_not_flushed(
    flaky: Flaky, store: Redis, worker: Worker, stream: bool
) -> None:
    """Its run has failed (a bug), so nothing renewed the lease or discarded the buffer."""
    for _ in range(2):
        await submit(flaky, stream=stream)
    broken, steady = [worker.start(job) for job in await claim(flaky)]
    await worker.step(broken, steady)
    del worker.runs[broken.job.id]
    await reap(flaky, store, broken.job)
    log: Any = store.lrange(keys.log(0, broken.job.id), 0, -1)
    for _ in range(STEPS):
        await worker.step(steady)
    assert store.lrange(keys.log(0, broken.job.id), 0, -1) == log


async def test_a_fenced_worker_goes_on_and_new_watchers_receive_its_output(
    flaky: Flaky, gateway: ChannelSubscriber, other_gateway: ChannelSubscriber, worker: Worker
) -> None:
    for stream in (True, False, True):
        await submit(flaky, stream=stream, gateway=GATEWAY if stream else "")
    streamed, whole, quiet = buffers = [worker.start(job) for job in await claim(flaky)]
    await worker.step(*buffers)
    renewals = flaky.renewals
    await flaky.watch(streamed.job.id, "gw-2", follow=False)
    await flaky.watch(whole.job.id, "gw-2", follow=True)
    assert [frame[1] for frame in gateway.frames()] == [1, 1]
    await worker.step(*buffers)
    await worker.step(*buffers)
    assert flaky.renewals == renewals + 1
    mine = [(frame[0].decode(), frame[1]) for frame in gateway.frames()]
    others = [(frame[0].decode(), frame[1]) for frame in other_gateway.frames()]
    assert mine == [(buffer.job.id, seq) for seq in (2, 3) for buffer in (streamed, quiet)]
    assert others == [(buffer.job.id, seq) for seq in (2, 3) for buffer in (streamed, whole)]
    for buffer in buffers:
        assert texts_in(buffer, await log_entries(flaky, buffer.job.id, 0)) == [
            token_text(buffer, n) for n in range(3)
        ]
    assert worker.lost == {}


async def test_a_watcher_that_comes_before_the_end_receives_the_end(
    flaky: Flaky, other_gateway: ChannelSubscriber, worker: Worker
) -> None:
    buffer = worker.start(await lease(flaky))
    await worker.step(buffer)
    await flaky.watch(buffer.job.id, "gw-2", follow=True)
    assert await worker.finish(buffer, produces=True) == "ok"
    assert [frame[1:3] for frame in other_gateway.frames()] == [
        (2, FrameKind.LAST_CHUNK),
        (3, FrameKind.DONE),
    ]


async def test_a_fenced_worker_learns_which_jobs_it_has_lost(
    flaky: Flaky, gateway: ChannelSubscriber, worker: Worker
) -> None:
    for _ in range(3):
        await submit(flaky)
    stays, cancelled, reaped = buffers = [worker.start(job) for job in await claim(flaky)]
    await worker.step(*buffers)

    async def change() -> None:
        await flaky.cancel(cancelled.job.id, TENANT)
        await flaky.release([reaped.job], "drained", blame=False)
        gateway.messages()

    flaky.before = [change]
    await worker.step(*buffers)
    assert worker.lost == {cancelled.job.lease_id: "cancelled", reaped.job.lease_id: "queued"}
    assert [(frame[0].decode(), frame[1]) for frame in gateway.frames()] == [(stays.job.id, 2)]
    assert [len(await log_entries(flaky, buffer.job.id, 0)) for buffer in buffers] == [2, 2, 1]


async def test_a_job_that_arrives_late_is_not_published_before_a_renewal(
    flaky: Flaky,
    control: ChannelSubscriber,
    gateway: ChannelSubscriber,
    other_gateway: ChannelSubscriber,
    worker: Worker,
) -> None:
    """It was assigned, then changed; its worker received the change first, then the job."""
    (steady,) = [worker.start(await lease(flaky))]
    await worker.step(steady)
    await claim(flaky, slots=2)
    for _ in range(2):
        await submit(flaky)
    late, lost = control.assigned(flaky)
    assert late.fence_token == worker.lease.fence_tokens[0] != ""
    await flaky.watch(late.id, "gw-2", follow=True)
    await flaky.cancel(lost.id, TENANT)
    await worker.step(steady)
    assert worker.lease.fence_tokens[0] not in {late.fence_token, ""}
    gateway.messages()
    renewals = flaky.renewals
    watched, silent = worker.start(late), worker.start(lost)
    await worker.step(steady, watched, silent)
    assert flaky.renewals == renewals + 1
    assert worker.lost == {lost.lease_id: "cancelled"}
    assert [frame[0].decode() for frame in gateway.frames()] == [steady.job.id, late.id]
    assert [(frame[0].decode(), frame[1]) for frame in other_gateway.frames()] == [(late.id, 1)]
    assert [e.end for e in await log_entries(flaky, lost.id, 0)] == ["cancelled"]
    await worker.step(steady, watched)
    assert flaky.renewals == renewals + 1


async def test_a_job_that_arrives_late_does_not_end_before_a_renewal(
    flaky: Flaky, other_gateway: ChannelSubscriber, worker: Worker
) -> None:
    await worker.lease.renew(0)
    job = await lease(flaky)
    await flaky.watch(job.id, "gw-2", follow=False)
    await worker.lease.renew(0)  # does not include the job
    assert await worker.finish(worker.start(job)) == "ok"
    assert [frame[1:3] for frame in other_gateway.frames()] == [(1, FrameKind.DONE)]


async def test_a_worker_whose_fence_token_redis_has_lost_begins_another(
    flaky: Flaky, store: Redis, worker: Worker
) -> None:
    buffer = worker.start(await lease(flaky))
    await worker.step(buffer)
    store.delete(keys.fence(0, WORKER))
    await worker.step(buffer)
    assert texts_in(buffer, await log_entries(flaky, buffer.job.id, 0)) == [
        token_text(buffer, n) for n in range(2)
    ]


async def test_output_of_a_job_whose_lease_redis_has_lost_is_not_published(
    flaky: Flaky, queue: JobQueue, store: Redis, gateway: ChannelSubscriber, worker: Worker
) -> None:
    """After a power cut, or on a replica that was behind: the fencing token is older."""
    await worker.lease.renew(0)
    await submit(flaky)
    kept: dict[bytes, Any] = {key: store.dump(key) for key in store.scan_iter()}
    buffer = worker.start(await claim_one(flaky))
    await worker.step(buffer)
    store.flushall()
    for key, value in kept.items():
        store.restore(key, 0, value)
    store.client_kill_filter(_type="normal", skipme=True)
    new = await claim_one(queue, worker="w-2")
    gateway.messages()
    await emit_token(queue, new, 1, "new")
    await worker.step(buffer)
    assert [frame[1] for frame in gateway.frames()] == [1]
    assert worker.lost == {buffer.job.lease_id: "in_progress"}
    assert entry_texts(await log_entries(queue, new.id, 0)) == [b"new"]


@pytest.mark.parametrize("lost", ["", "call", "reply"])
async def test_a_stopped_worker_publishes_nothing_more(
    flaky: Flaky, store: Redis, worker: Worker, lost: str
) -> None:
    """Not even if a call was in flight."""
    buffer = worker.start(await lease(flaky))
    await worker.step(buffer)
    calls, losses = flaky.n_calls, [lost]
    on_its_way, goes_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        on_its_way.set()
        await goes_on.wait()

    flaky.before, flaky.lose = [wait], lambda: losses.pop() if losses else ""
    produce(buffer, 1)
    worker.publisher.on_step()
    await asyncio.wait_for(on_its_way.wait(), DEADLINE_S)
    await end([worker.task])
    for n in (2, 3):
        produce(buffer, n)
        worker.publisher.on_step()
        goes_on.set()
        for _ in range(20):  # other calls complete meanwhile
            await flaky.servers.primary.ping()
    assert flaky.n_calls == calls + 1


@one_redis_only
async def test_shards_have_step_logs_and_fence_tokens_of_their_own(
    flaky: Flaky, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaky.shards = 2
    worker = Worker(flaky)
    jobs = [
        (await claim(flaky, shard=shard))[0]
        for shard in (0, 1)
        if await submit(flaky, id=f"job_{shard:03x}{'0' * 24}")
    ]
    steady, pausing = [worker.start(job) for job in jobs]
    await worker.step(steady)
    for _ in range(2):
        await worker.step(pausing)
    for _ in range(STEPS):
        await worker.step(steady)
    assert (n_steps(store, shard=0), n_steps(store, shard=1)) == (STEPS, 2)
    # The first entry alone: no step of its shard has followed the second.
    assert store.llen(keys.log(1, pausing.job.id)) == 1
    renewals = flaky.renewals
    await flaky.watch(pausing.job.id, "gw-2", follow=True)
    await worker.step(steady)
    assert flaky.renewals == renewals
    await worker.step(steady, pausing)
    assert flaky.renewals == renewals + 1
    for buffer in (steady, pausing):
        texts = texts_in(buffer, await log_entries(flaky, buffer.job.id, 0))
        assert texts == worker.produced[buffer.job.lease_id]
    await end([worker.task])


# --- everything at once, at random ---


class RandomSteps:
    """A worker whose jobs produce output at random, and random faults and changes."""

    def __init__(
        self,
        worker: Worker,
        store: Redis,
        subscribers: dict[str, ChannelSubscriber],
        control: ChannelSubscriber,
        seed: int,
    ) -> None:
        self.worker = worker
        self.queue = worker.queue
        self.store = store
        self.random = random.Random(seed)
        self.subscribers = subscribers
        self.control = control
        self.buffers: list[OutputBuffer] = []
        """Those of running jobs."""
        self.past: list[OutputBuffer] = []
        """Those of ended jobs."""
        self.rates: dict[str, float] = {}
        """How often a job produces output."""
        self.watched_from: dict[tuple[str, str], int] = {}
        """By gateway and job: the first number that the gateway must receive."""
        self.received: dict[tuple[str, str], set[int]] = {}
        self.queue.lose = self.lose

    def lose(self) -> str:
        return self.random.choices(["", "call", "reply"], [20, 1, 1])[0]

    # --- clients and other processes ---

    async def add_job(self) -> None:
        """Add a job, assigned or claimed."""
        if len(self.buffers) > 7:
            return
        assigned = self.random.random() < 0.5
        for again in await claim(self.queue, 8, slots=9 * assigned):
            await self.start(again)
        job = await submit(
            self.queue,
            stream=self.random.random() < 0.6,
            gateway=self.random.choice(["", GATEWAY]),
            ttl_s=3600.0,  # longer than 300 steps take on a busy machine
            deadline_s=3600,
        )
        (late,) = self.control.assigned(self.queue) if assigned else await claim(self.queue)
        assert late.id == job.id
        if self.random.random() < 0.3:  # before its worker receives it
            await self.change(late)
        await self.start(late)

    async def start(self, job: LeasedJob) -> None:
        buffer = await self.worker.resume(job)
        self.buffers.append(buffer)
        self.rates[job.lease_id] = self.random.choice([1.0, 0.9, 0.3, 0.05, 0.02])

    async def change(self, job: LeasedJob | None = None) -> None:
        """End, requeue or watch a job."""
        if job is None:
            if not self.buffers:
                return
            job = self.random.choice(self.buffers).job
        roll = self.random.random()
        if roll < 0.5:
            await self.watch(job)
        elif roll < 0.7:
            await cancel(self.queue, self.store, job)
        elif roll < 0.8:
            await expire(self.queue, self.store, job)
        elif roll < 0.9:
            await release(self.queue, self.store, job)
        elif self.is_held(job):
            await reap(self.queue, self.store, job)

    def lease_id(self, job: LeasedJob) -> str:
        """The id of the last lease; empty if the job was requeued since."""
        packed: Any = self.store.hget(keys.job(0, job.id), "lease")
        return read_lease(packed).lease_id

    def is_held(self, job: LeasedJob) -> bool:
        state = self.store.hget(keys.job(0, job.id), "state")
        return state == b"in_progress" and self.lease_id(job) == job.lease_id

    async def watch(self, job: LeasedJob) -> None:
        gateway = self.random.choice(list(self.subscribers))
        follow = self.random.random() < 0.5
        if not self.is_held(job):
            return
        await self.queue.watch(job.id, gateway, follow=follow)
        if job.stream or follow:
            last = await self.queue.last_entry(job.id)
            self.watched_from.setdefault((gateway, job.lease_id), last.seq + 1 if last else 1)

    async def forget(self) -> None:
        self.store.delete(keys.fence(0, WORKER))

    async def renew(self) -> None:
        """Renew as the lease renewer does, which tolerates failures."""
        with contextlib.suppress(StoreTimeout):
            await self.worker.lease.renew(0)

    # --- the worker ---

    async def step(self) -> None:
        while self.random.random() < 0.2:
            disturbance = self.random.choice([self.change, self.change, self.forget, self.renew])
            self.queue.before.append(disturbance)
        senders = [x for x in self.buffers if self.random.random() < self.rates[x.job.lease_id]]
        if senders and self.random.random() < 0.2:
            senders = senders[:1]
        if senders:
            await self.worker.step(*senders)
        for buffer in self.buffers[:]:
            if buffer.discarded:
                await self.remove(buffer)
            elif self.random.random() < 0.04:
                await self.worker.finish(buffer, produces=self.random.random() < 0.5)
                await self.remove(buffer)

    async def remove(self, buffer: OutputBuffer) -> None:
        self.buffers.remove(buffer)
        run = self.worker.runs.get(buffer.job.id)
        if run is not None and run.buffer is buffer:
            del self.worker.runs[buffer.job.id]
        job = await self.queue.get(buffer.job.id)
        assert job is not None
        if job.state is JobState.QUEUED:
            for again in await claim(self.queue):
                await self.start(again)
        elif self.lease_id(buffer.job) == buffer.job.lease_id:
            assert job.state is not JobState.IN_PROGRESS
            self.past.append(buffer)

    # --- what must hold ---

    def receive(self) -> None:
        for gateway, subscriber in self.subscribers.items():
            for id_, seq, kind, *_ in subscriber.frames():
                if kind in (FrameKind.CHUNK, FrameKind.DELTAS):
                    self.received.setdefault((gateway, id_.decode()), set()).add(seq)

    async def check(self) -> None:
        assert n_steps(self.store) <= STEPS
        for buffer in self.buffers:
            if not buffer.discarded and self.is_held(buffer.job):
                await self.check_entries(buffer, whole=True)
        for buffer in self.past:
            await self.check_entries(buffer, whole=False)

    async def check_entries(self, buffer: OutputBuffer, *, whole: bool) -> None:
        job, texts = buffer.job, self.worker.produced[buffer.job.lease_id]
        entries = await log_entries(self.queue, job.id, 0)
        after = self.random.randrange(len(entries) + 2)
        assert await log_entries(self.queue, job.id, after) == entries[after:]
        if not whole:
            assert entries[-1].end
            last = await self.queue.last_entry(job.id)
            assert last == entries.pop()
        found = texts_in(buffer, entries)
        # If the reply to a step is lost and the job is lost, too, the worker does not know whether
        # the job's last token was stored.
        extra = [token_text(buffer, len(texts))] if len(found) > len(texts) and not whole else []
        assert found == [*texts, *extra]
        for gateway in self.subscribers:
            first = self.watched_from.get((gateway, job.lease_id))
            if first is not None and whole:
                numbers = self.received.get((gateway, job.id), set())
                assert set(range(first, len(texts) + 1)) <= numbers, (
                    "a subscriber has missed a frame"
                )


@pytest.mark.seeds(4)
async def test_random_steps_lose_no_stored_output(
    flaky: Flaky,
    store: Redis,
    gateway: ChannelSubscriber,
    other_gateway: ChannelSubscriber,
    control: ChannelSubscriber,
    worker: Worker,
    seed: int,
) -> None:
    subscribers = {GATEWAY: gateway, "gw-2": other_gateway}
    steps = RandomSteps(worker, store, subscribers, control, seed)
    for _ in range(300):
        if steps.random.random() < 0.1:
            await steps.add_job()
        await steps.step()
        steps.receive()
        await steps.check()
    assert len(steps.past) > 5


async def test_a_worker_goes_on_when_redis_has_forgotten_the_scripts(
    flaky: Flaky, store: Redis, worker: Worker
) -> None:
    buffer = worker.start(await lease(flaky))
    await worker.step(buffer)
    store.function_flush()
    store.script_flush()
    for _ in range(3):
        await worker.step(buffer)
    assert [e.seq for e in await log_entries(flaky, buffer.job.id, 0)] == [1, 2, 3, 4]
