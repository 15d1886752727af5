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

from shared.platform.metrics import WorkerMetrics
from shared.platform.redis_client import RedisTimeoutError
from shared.platform.servers import Servers
from shared.platform.tasks import end
from shared.protocol import keys
from shared.protocol.chunk_template import DeltaDecoder
from shared.protocol.frames import FrameKind, encode, entry_of
from shared.protocol.job import LeasedJob
from shared.protocol.job_log import Delta, Entry, pack_segment, read_journal
from shared.protocol.record import read_lease
from shared.protocol.scripts.emit import Fenced, Step, make_step
from shared.protocol.scripts.renew import Renewal
from shared.protocol.states import JobState
from shared.protocol.step_log import FLUSH_AFTER, STEPS, JobOutput, LogFlush
from shared.queue.job_queue import JobQueue
from tests.redis.conftest import (
    GATEWAY,
    LEASE_S,
    POOL,
    TENANT,
    WORKER,
    Listener,
    answer,
    decode,
    emit,
    enter,
    entry_output,
    finish,
    grow_old,
    lease,
    output,
    say,
    silent_end,
    submit,
    take,
    take_one,
)
from worker.claim.lease import Lease
from worker.publish import publisher as publisher_module
from worker.publish.output_buffer import OutputBuffer
from worker.publish.publisher import Publisher

DEADLINE_S = 60.0


def segment(words: Sequence[JobOutput], first: int) -> LogFlush:
    """The flush of outputs from number `first` on into the job log."""
    job_id = words[0][0].job.id
    entries = [entry_of(frame, job_id, seq) for seq, (_, frame, _) in enumerate(words, first)]
    return LogFlush(job_id, pack_segment(first, entries))


def texts(entries: Sequence[Entry]) -> list[bytes]:
    """What entries of a streamed job say; such as are lost say so."""
    return [b"lost" if e.lost else e.end.encode() or b"".join(map(bytes, e.items)) for e in entries]


def n_steps(store: Redis, worker: str = WORKER, shard: int = 0) -> int:
    length: Any = store.llen(keys.steps(shard, worker))
    assert length % 2 == 0
    return int(length) // 2


# --- reading ---


async def test_what_is_only_in_the_step_log_is_read(queue: JobQueue, store: Redis) -> None:
    job = await lease(queue)
    assert await queue.entries(job.id, 0) == []
    assert await queue.last_entry(job.id) is None
    for seq in range(1, 6):
        await say(queue, job, seq, str(seq))
        last = await queue.last_entry(job.id)
        assert last is not None
        assert (last.seq, last.items) == (seq, (b"%d" % seq,))
    assert not store.exists(keys.log(0, job.id))
    whole = await queue.entries(job.id, 0)
    assert texts(whole) == [b"1", b"2", b"3", b"4", b"5"]
    for after in range(7):
        assert await queue.entries(job.id, after) == whole[after:]


@pytest.mark.parametrize("cuts", [(1,), (5,), (11,), (12,), (3, 4, 9), tuple(range(1, 13))])
async def test_log_and_step_log_are_one_wherever_the_log_ends(
    queue: JobQueue, cuts: tuple[int, ...]
) -> None:
    """`cuts`: numbers of the last entries of the log's segments."""
    for _ in range(2):
        await submit(queue)
    job, other = await take(queue)
    words = [output(job, seq, str(seq)) for seq in range(1, 13)]
    begun = 1
    for seq, word in enumerate(words, 1):
        await emit(queue, [output(other, seq), word])
        if seq in cuts:
            await emit(queue, [], log_flushes=[segment(words[begun - 1 : seq], begun)])
            begun = seq + 1
    whole = await queue.entries(job.id, 0)
    assert [e.seq for e in whole] == list(range(1, 13))
    assert texts(whole) == [b"%d" % seq for seq in range(1, 13)]
    for after in range(15):
        assert await queue.entries(job.id, after) == whole[after:]
    assert await queue.last_entry(job.id) == whole[-1]


async def test_a_number_of_any_size_is_read(queue: JobQueue) -> None:
    """Its place in a frame grows with it."""
    job = await lease(queue)
    for seq in (0x7F, 0xFF, 0xFFFF):
        words = [output(job, seq + more, str(seq + more)) for more in range(3)]
        for word in words:
            await emit(queue, [word])
        from_the_steps = await queue.entries(job.id, seq - 1)
        assert [e.seq for e in from_the_steps] == [seq, seq + 1, seq + 2]
        assert texts(from_the_steps) == [b"%d" % (seq + more) for more in range(3)]
        await emit(queue, [], log_flushes=[segment(words, seq)])
        assert await queue.entries(job.id, seq - 1) == from_the_steps


async def test_each_job_and_each_worker_has_its_own_words(queue: JobQueue) -> None:
    for _ in range(4):
        await submit(queue)
    mine, others = await take(queue, 2), await take(queue, 2, worker="w-2")
    for seq in range(1, 4):
        await emit(queue, [output(job, seq, f"1{job.id}{seq}") for job in mine])
        await emit(queue, [output(job, seq, f"2{job.id}{seq}") for job in reversed(others)])
    for worker, jobs in ((1, mine), (2, others)):
        for job in jobs:
            expected = [f"{worker}{job.id}{seq}".encode() for seq in range(1, 4)]
            assert texts(await queue.entries(job.id, 0)) == expected


# --- text that looks like a frame ---


def counterfeit(job: LeasedJob, seq: int) -> bytes:
    """A frame of the job as it would stand in a step."""
    return encode(job.id, seq, FrameKind.CHUNK, (b"counterfeit",))


@pytest.mark.parametrize("known", [False, True])
async def test_text_that_spells_a_frame_of_another_job_is_none(
    queue: JobQueue, known: bool
) -> None:
    for _ in range(2):
        await submit(queue)
    victim, forger = await take(queue)
    forged = counterfeit(victim, 1 + known)
    if known:
        await say(queue, victim, 1, "mine")
    await emit(queue, [entry_output(forger, 1, (forged,), ((0, 0, (1,), forged),))])
    await emit(queue, [entry_output(forger, 2, (forged + forged, (1, 2), forged), None)])
    assert texts(await queue.entries(victim.id, 0)) == [b"mine"] * known
    await queue.cancel(victim.id, TENANT)
    assert texts(await queue.entries(victim.id, 0)) == [b"mine"] * known + [b"cancelled"]
    assert [e.items for e in await queue.entries(forger.id, 0)] == [
        (forged,),
        (forged + forged, (1, 2), forged),
    ]


@pytest.mark.parametrize("place", ["before", "behind", "around"])
async def test_a_frame_among_such_texts_is_found(queue: JobQueue, place: str) -> None:
    for _ in range(3):
        await submit(queue)
    victim, forger, another = await take(queue)
    forged = [entry_output(x, 1, (counterfeit(victim, 1),), None) for x in (forger, another)]
    true = output(victim, 1, "true")
    steps = {"before": [true, *forged], "behind": [*forged, true]}
    await emit(queue, steps.get(place, [forged[0], true, forged[1]]))
    assert texts(await queue.entries(victim.id, 0)) == [b"true"]


async def test_a_job_that_spells_its_own_next_frame_has_not_said_it(queue: JobQueue) -> None:
    job = await lease(queue)
    spelt = counterfeit(job, 2)
    await emit(queue, [entry_output(job, 1, (spelt,), ((0, 0, (1,), spelt),))])
    assert [(e.seq, e.items) for e in await queue.entries(job.id, 0)] == [(1, (spelt,))]
    await say(queue, job, 2, "true")
    assert texts(await queue.entries(job.id, 1)) == [b"true"]


async def test_the_head_of_a_frame_may_stand_in_proper_text(queue: JobQueue) -> None:
    """U+25BF ends with the bytes that a frame begins with."""
    for _ in range(2):
        await submit(queue)
    victim, forger = await take(queue)
    spelt = f"\u25bf{victim.id}\1\1\0"
    assert counterfeit(victim, 1)[: len(victim.id) + 3] in spelt.encode()
    await emit(queue, [output(forger, 1, spelt), output(victim, 1, "true")])
    assert texts(await queue.entries(victim.id, 0)) == [b"true"]
    assert texts(await queue.entries(forger.id, 0)) == [spelt.encode()]


# --- generations ---


async def test_what_was_said_in_an_earlier_generation_is_not_taken(
    queue: JobQueue, store: Redis
) -> None:
    """The same job on the same worker, whose step log still has the words of its first try."""
    old = await lease(queue, stream=False)
    for seq in (1, 2, 3):
        await emit(queue, [entry_output(old, seq, None, (("old", seq),))])
    assert await queue.release([old], "drained", blame=False) == {old.id: "queued"}
    new = await take_one(queue)
    assert (new.id, new.generation) == (old.id, old.generation + 1)
    assert n_steps(store) == 3
    assert await queue.entries(new.id, 0) == []
    assert await queue.last_entry(new.id) is None
    await emit(queue, [entry_output(new, 1, None, (("new", 1),))])
    assert [e.journal for e in await queue.entries(new.id, 0)] == [((b"new", 1),)]
    await queue.cancel(new.id, TENANT)
    entries = await queue.entries(new.id, 0)
    assert [(e.journal, e.end) for e in entries] == [(((b"new", 1),), ""), (None, "cancelled")]


async def test_a_job_that_waits_anew_has_said_nothing(queue: JobQueue) -> None:
    job = await lease(queue, stream=False)
    await say(queue, job, 1)
    await queue.release([job], "drained", blame=False)
    assert await queue.entries(job.id, 0) == []
    await queue.cancel(job.id, TENANT)
    assert [(e.seq, e.end) for e in await queue.entries(job.id, 0)] == [(1, "cancelled")]


async def test_a_worker_says_nothing_in_an_earlier_generation(queue: JobQueue) -> None:
    old = await lease(queue, stream=False)
    await queue.release([old], "drained", blame=False)
    new = await take_one(queue)
    assert await say(queue, old, 1) == {old.id: "in_progress"}
    assert await say(queue, new, 1) == {}
    assert len(await queue.entries(new.id, 0)) == 1


# --- the end of a job flushes its worker's output ---

Ender = Callable[[JobQueue, Redis, LeasedJob], Awaitable[Any]]


async def cancel(queue: JobQueue, _: Redis, job: LeasedJob) -> None:
    await queue.cancel(job.id, TENANT)


async def expire(queue: JobQueue, store: Redis, job: LeasedJob) -> None:
    store.zadd(keys.base(0) + keys.DEADLINES, {job.id: 1})
    await queue.expire(0, 100)


async def reap(queue: JobQueue, store: Redis, job: LeasedJob) -> None:
    grow_old(store, job)
    await queue.reap(0, 1.0)


async def release(queue: JobQueue, _: Redis, job: LeasedJob) -> None:
    await queue.release([job], "drained", blame=False)


async def reject_unreceived(queue: JobQueue, _: Redis, job: LeasedJob) -> None:
    await queue.reject_unreceived(POOL, WORKER, [], 0.0)


ENDERS = [cancel, expire, reap, release, reject_unreceived]
END_STATES: dict[Ender, str] = {cancel: "cancelled", expire: "expired"}


@pytest.mark.parametrize("flushed", [0, 1, 3])
@pytest.mark.parametrize("ender", ENDERS)
async def test_who_ends_a_job_puts_what_was_said_into_its_log(
    queue: JobQueue, store: Redis, gateway: Listener, ender: Ender, flushed: int
) -> None:
    job = await lease(queue, deadline_s=60)
    words = [output(job, seq, str(seq)) for seq in (1, 2, 3)]
    for word in words:
        await emit(queue, [word])
    if flushed:
        await emit(queue, [], log_flushes=[segment(words[:flushed], 1)])
    gateway.messages()
    await ender(queue, store, job)
    store.delete(keys.steps(0, WORKER))
    state = END_STATES.get(ender, "failed")
    assert texts(await queue.entries(job.id, 0)) == [b"1", b"2", b"3", state.encode()]
    assert [frame[1:3] for frame in gateway.frames()] == [(4, FrameKind.ENDED)]
    last = await queue.last_entry(job.id)
    assert last is not None
    assert (last.seq, last.end) == (4, state)
    assert 0 < store.pttl(keys.log(0, job.id)) <= 60_000


@pytest.mark.parametrize("ender", [reap, release, reject_unreceived])
async def test_words_that_nobody_has_seen_do_not_keep_a_job_from_starting_anew(
    queue: JobQueue, store: Redis, ender: Ender
) -> None:
    job = await lease(queue, stream=False)
    words = [output(job, seq) for seq in (1, 2)]
    await emit(queue, words[:1], log_flushes=[segment(words[:1], 1)])
    await emit(queue, words[1:])
    await ender(queue, store, job)
    again = await take_one(queue, worker="w-2")
    assert again.id == job.id
    assert not store.exists(keys.log(0, job.id))
    assert await queue.entries(job.id, 0) == []


async def test_a_job_that_took_too_many_workers_down_keeps_its_last_words(
    queue: JobQueue, store: Redis
) -> None:
    job = await lease(queue, stream=False, max_attempts=1)
    await say(queue, job, 1)
    await reap(queue, store, job)
    store.delete(keys.steps(0, WORKER))
    assert [(e.seq, e.end) for e in await queue.entries(job.id, 0)] == [(1, ""), (2, "failed")]


async def test_who_ends_jobs_of_one_worker_settles_each(queue: JobQueue, store: Redis) -> None:
    for _ in range(3):
        await submit(queue)
    jobs = await take(queue)
    for seq in (1, 2):
        await emit(queue, [output(job, seq, f"{job.id}{seq}") for job in jobs])
    for job in jobs:
        grow_old(store, job)
    await queue.reap(0, 1.0)
    store.delete(keys.steps(0, WORKER))
    for job in jobs:
        expected = [f"{job.id}1".encode(), f"{job.id}2".encode(), b"failed"]
        assert texts(await queue.entries(job.id, 0)) == expected


# --- what Redis has lost ---


async def test_without_its_steps_a_log_holds_what_was_flushed(
    queue: JobQueue, store: Redis
) -> None:
    job = await lease(queue)
    words = [output(job, seq, str(seq)) for seq in range(1, 7)]
    for word in words[:2]:
        await emit(queue, [word])
    await emit(queue, [words[2]], log_flushes=[segment(words[:3], 1)])
    await emit(queue, [words[3]])
    store.delete(keys.steps(0, WORKER))
    assert texts(await queue.entries(job.id, 0)) == [b"1", b"2", b"3"]
    await emit(queue, [words[4]])
    assert texts(await queue.entries(job.id, 2)) == [b"3", b"lost", b"5"]
    # Its worker has all of it still.
    await emit(queue, [words[5]], log_flushes=[segment(words[3:], 4)])
    assert texts(await queue.entries(job.id, 2)) == [b"3", b"4", b"5", b"6"]


@pytest.mark.parametrize("ender", ENDERS)
async def test_who_ends_a_job_whose_steps_are_lost_in_part_leaves_a_hole(
    queue: JobQueue, store: Redis, ender: Ender
) -> None:
    job = await lease(queue, deadline_s=60)
    words = [output(job, seq, str(seq)) for seq in (1, 2, 3, 4)]
    await emit(queue, [words[0]], log_flushes=[segment(words[:1], 1)])
    await emit(queue, [words[1]])
    store.delete(keys.steps(0, WORKER))
    await emit(queue, [words[2]])
    await emit(queue, [words[3]])
    await ender(queue, store, job)
    state = END_STATES.get(ender, "failed")
    expected = [b"1", b"lost", b"3", b"4", state.encode()]
    assert texts(await queue.entries(job.id, 0)) == expected


@pytest.mark.parametrize("after", range(12))
async def test_a_segment_that_is_lost_leaves_a_hole(
    queue: JobQueue, store: Redis, after: int
) -> None:
    job = await lease(queue)
    words = [output(job, seq, str(seq)) for seq in range(1, 10)]
    for word in words:
        await emit(queue, [word])
    for first in (1, 3, 5, 7):
        await emit(queue, [], log_flushes=[segment(words[first - 1 : first + 1], first)])
    log = keys.log(0, job.id)
    second: Any = segment(words[2:4], 3).segment
    store.lrem(log, 1, second)
    expected = [b"1", b"2", b"lost", b"lost", b"5", b"6", b"7", b"8", b"9"]
    assert texts(await queue.entries(job.id, after)) == expected[after:]
    store.ltrim(log, -1, -1)
    expected[:6] = [b"lost"] * 6
    assert texts(await queue.entries(job.id, after)) == expected[after:]
    assert texts([e for e in [await queue.last_entry(job.id)] if e]) == [b"9"]


async def test_a_log_that_is_lost_is_read_as_far_as_the_steps_go(
    queue: JobQueue, store: Redis
) -> None:
    job = await lease(queue)
    n = STEPS + 5
    words = [output(job, seq, str(seq)) for seq in range(1, n + 1)]
    for word in words:
        await emit(queue, [word])
    await emit(queue, [], log_flushes=[segment(words[:FLUSH_AFTER], 1)])
    store.delete(keys.log(0, job.id))
    expected = [b"lost"] * 5 + [b"%d" % seq for seq in range(6, n + 1)]
    assert texts(await queue.entries(job.id, 0)) == expected
    await finish(queue, job, n + 1, answer())
    assert texts(await queue.entries(job.id, 0)) == [b"lost"] * n + [b"failed"]


async def test_what_stands_behind_a_lost_step_is_read(queue: JobQueue, store: Redis) -> None:
    """Redis was killed, has lost its last moments, and the worker has gone on."""
    job = await lease(queue)
    for seq in range(1, 6):
        await say(queue, job, seq, str(seq))
    steps: Any = store.lrange(keys.steps(0, WORKER), 0, -1)
    store.delete(keys.steps(0, WORKER))
    store.rpush(keys.steps(0, WORKER), *steps[:4], *steps[6:])  # without the third
    whole = [b"1", b"2", b"lost", b"4", b"5"]
    for after in range(6):
        assert texts(await queue.entries(job.id, after)) == whole[after:]
    assert texts([e for e in [await queue.last_entry(job.id)] if e]) == [b"5"]
    await queue.cancel(job.id, TENANT)
    assert texts(await queue.entries(job.id, 0)) == [*whole, b"cancelled"]


async def test_a_call_that_is_carried_out_late_does_not_change_a_log(
    queue: JobQueue, store: Redis
) -> None:
    """Its connection was given up, it was repeated on another, and came all the same in the end."""
    fence_token = await enter(queue)
    for _ in range(2):
        await submit(queue)
    pauses, ends = await take(queue)
    words = {job.id: [output(job, seq) for seq in (1, 2, 3)] for job in (pauses, ends)}
    steps = [
        make_step(
            [words[job.id][n] for job in (pauses, ends)],
            [segment(words[job.id][n : n + 1], n + 1) for job in (pauses, ends)],
        )
        for n in range(3)
    ]
    for step in steps:
        await queue.emit(0, WORKER, fence_token, step)
    await queue.emit(0, WORKER, fence_token, make_step([silent_end(ends, 4, answer())]))
    assert await queue.emit(0, WORKER, fence_token, steps[0]) == {}
    last = [await queue.last_entry(job.id) for job in (pauses, ends)]
    assert [entry and (entry.seq, entry.end) for entry in last] == [(3, ""), (4, "completed")]
    await queue.cancel(pauses.id, TENANT)
    assert [e.seq for e in await queue.entries(pauses.id, 0)] == [1, 2, 3, 4]
    assert [e.seq for e in await queue.entries(ends.id, 0)] == [1, 2, 3, 4]


# --- the fence ---


async def watch_anew(queue: JobQueue, _: Redis, job: LeasedJob) -> None:
    await queue.watch(job.id, "gw-2", follow=False)


async def see(queue: JobQueue, _: Redis, job: LeasedJob) -> None:
    await queue.watch(job.id, GATEWAY, follow=True)


async def see_anew(queue: JobQueue, _: Redis, job: LeasedJob) -> None:
    await queue.watch(job.id, "gw-2", follow=True)


@pytest.mark.parametrize("change", [*ENDERS, watch_anew, see, see_anew])
async def test_whoever_changes_a_job_ends_the_fence_token_of_its_worker(
    queue: JobQueue, store: Redis, change: Ender
) -> None:
    """The worker's, for all its jobs; no other worker's."""
    fence_tokens = {worker: await enter(queue, worker) for worker in (WORKER, "w-2")}
    for _ in range(3):
        await submit(queue, stream=False, deadline_s=60)
    (changed, other), (foreign,) = await take(queue, 2), await take(queue, 1, worker="w-2")
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


async def watch_as_before(queue: JobQueue, _: Redis, job: LeasedJob) -> None:
    await queue.watch(job.id, GATEWAY, follow=False)


async def see_as_before(queue: JobQueue, _: Redis, job: LeasedJob) -> None:
    await queue.watch(job.id, GATEWAY, follow=True)


async def end_others(queue: JobQueue, store: Redis, job: LeasedJob) -> None:
    """Jobs that wait, that another worker has, or that have ended."""
    for ender in ENDERS[:-1]:
        await submit(queue, deadline_s=60)
        await ender(queue, store, await take_one(queue, worker="w-2"))
        with contextlib.suppress(ValueError):  # it waits anew
            await queue.cancel((await take_one(queue, worker="w-2")).id, TENANT)
    await queue.reject_unreceived(POOL, "w-2", [], 0.0)
    waits = await submit(queue)
    await queue.watch(waits.id, "gw-2", follow=True)
    await queue.cancel(waits.id, TENANT)
    for sees in (False, True):
        await queue.watch(waits.id, "gw-3", follow=sees)
    await queue.cancel(waits.id, TENANT)


async def ask(queue: JobQueue, _: Redis, job: LeasedJob) -> None:
    """In vain, or about it."""
    assert await queue.cancel(job.id, "somebody else") is None
    assert await queue.reap(0, LEASE_S) == {}
    assert await queue.reject_unreceived(POOL, WORKER, [job.id], 0.0) == {}
    await queue.expire(0, 100)
    await queue.get(job.id)
    await queue.entries(job.id, 0)
    await queue.last_entry(job.id)


async def get_more(queue: JobQueue, _: Redis, job: LeasedJob) -> None:
    """Jobs, by both ways."""
    await submit(queue)
    await take_one(queue)
    await take(queue, offer=1)
    await submit(queue)


@pytest.mark.parametrize(
    "change", [watch_as_before, see_as_before, end_others, ask, get_more], ids=lambda x: x.__name__
)
async def test_what_changes_nothing_that_a_worker_knows_leaves_its_fence_token(
    queue: JobQueue, store: Redis, control: Listener, change: Ender
) -> None:
    job = await lease(queue, stream=False)
    await queue.watch(job.id, GATEWAY, follow=change is see_as_before)
    fence_token = await enter(queue)
    await change(queue, store, job)
    assert await queue.emit(0, WORKER, fence_token, make_step([output(job, 1)])) == {}
    renewal = await queue.renew(0, WORKER, fence_token, LEASE_S, [job])
    assert (renewal.fence_token, renewal.lost) == (fence_token, {})


async def test_a_job_tells_in_which_fence_token_it_was_given(
    queue: JobQueue, control: Listener
) -> None:
    assert (await lease(queue)).fence_token == ""
    fence_token = await enter(queue)
    claimed = await lease(queue)
    await take(queue, offer=1)
    await submit(queue)
    (handed,) = control.handed(queue)
    assert claimed.fence_token == handed.fence_token == fence_token


# --- the worker's side: publisher, lease and buffers as they are ---


class Flaky(JobQueue):
    """A queue whose calls are disturbed: `before` is called before emissions, `lose` says what is
    lost of a call, if anything."""

    def __init__(self, servers: Servers, shards: int) -> None:
        super().__init__(servers, shards=shards)
        self.before: list[Callable[[], Awaitable[Any]]] = []
        """For the next emissions, one each."""
        self.lose: Callable[[], str] = lambda: ""
        self.taken: set[tuple[bytes, int, int]] = set()
        """Job, number and step of the frames that the publisher knows to be in Redis."""
        self.n_steps = 0
        self.n_calls = 0
        self.called = asyncio.Event()
        """A call has come to its end."""
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
            self.taken |= {(frame[0], frame[1], self.n_steps) for frame in decode(step.frames)}
        return reply

    async def renew(self, *args: Any, **options: Any) -> Renewal:
        self.renewals += 1
        return cast(Renewal, await self._disturbed(super().renew, *args, **options))

    async def _disturbed(self, call: Any, *args: Any, **options: Any) -> Any:
        self.n_calls += 1
        lost = self.lose()
        try:
            if lost == "call":
                raise RedisTimeoutError("the call is lost")
            reply = await call(*args, **options)
            if lost == "reply":
                raise RedisTimeoutError("the reply is lost")
        finally:
            self.called.set()
        return reply


class Worker:
    """A worker without an engine: its jobs say what the test wants."""

    def __init__(self, queue: Flaky, name: str = WORKER) -> None:
        self.queue = queue
        self.runs: dict[str, Any] = {}
        self.lost: dict[str, str] = {}
        self.produced: dict[str, list[str]] = {}
        """By lease id, what Redis has taken."""
        self.lease = Lease(
            queue,
            name,
            LEASE_S,
            lambda: [run.buffer for run in self.runs.values()],
            self._lose,
        )
        self.publisher = Publisher(queue, WorkerMetrics(CollectorRegistry()), self.lease)
        self.task = asyncio.create_task(self.publisher.run())

    def _lose(self, job: LeasedJob, state: str) -> None:
        self.lost[job.lease_id] = state
        if job.id in self.runs and self.runs[job.id].job.lease_id == job.lease_id:
            self.runs[job.id].buffer.discarded = True

    def start(self, job: LeasedJob) -> OutputBuffer:
        """As worker/run/executor.py does."""
        if job.id in self.runs:
            self.runs[job.id].buffer.discarded = True
        buffer = OutputBuffer(job, self.publisher.notify)
        self.runs[job.id] = SimpleNamespace(job=job, buffer=buffer)
        self.produced[job.lease_id] = []
        return buffer

    async def step(self, *senders: OutputBuffer) -> None:
        """The engine makes a step in which these say a token each; Redis has taken it then."""
        begun = self.queue.n_steps
        for buffer in senders:
            produce(buffer, len(self.produced[buffer.job.lease_id]))
        self.publisher.on_step()
        async with asyncio.timeout(DEADLINE_S):
            while not all(buffer.discarded or self.is_taken(buffer, begun) for buffer in senders):
                self.queue.called.clear()
                await self.queue.called.wait()
                assert not self.task.done()
        for buffer in senders:
            if not buffer.discarded:
                words = self.produced[buffer.job.lease_id]
                words.append(word(buffer, len(words)))

    def is_taken(self, buffer: OutputBuffer, begun: int) -> bool:
        """What the buffer says next, in a step after so many."""
        job_id, seq = buffer.job.id.encode(), len(self.produced[buffer.job.lease_id]) + 1
        return any(
            (job_id, seq, n) in self.queue.taken for n in range(begun + 1, self.queue.n_steps + 1)
        )

    async def finish(self, buffer: OutputBuffer, *, produces: bool = False) -> str:
        """The job ends, with a last word or without."""
        words = self.produced[buffer.job.lease_id]
        if produces:
            produce(buffer, len(words))
        async with asyncio.timeout(DEADLINE_S):
            verdict = await self.publisher.finish(buffer, answer())
        if verdict == "ok":
            words += [word(buffer, len(words))] * produces
        if self.runs[buffer.job.id].buffer is buffer:
            del self.runs[buffer.job.id]
        return verdict


def word(buffer: OutputBuffer, n: int) -> str:
    """The token that a job says after `n` others; in it, the head of its own frames."""
    return f"{n}\u257f{buffer.job.id}"


def produce(buffer: OutputBuffer, n: int) -> None:
    buffer.delta(0, 0, [n], word(buffer, n))
    if buffer.job.stream:
        buffer.chunk(f'data: {{"text": "{word(buffer, n)}"}}\n\n'.encode())


def words_in(buffer: OutputBuffer, entries: Sequence[Entry]) -> list[str]:
    """The words of a job in its entries, from the first; they must be whole."""
    decoder, words = DeltaDecoder(), []
    for n, entry in enumerate(entries):
        assert (entry.seq, entry.lost, entry.end) == (n + 1, False, "")
        (delta,) = read_journal(entry.journal, entry.items)
        assert isinstance(delta, Delta)
        assert delta.token_ids == (n,)
        if buffer.job.stream:
            assert decoder.decode(entry.items) == f'data: {{"text": "{delta.text}"}}\n\n'.encode()
        words.append(delta.text)
    return words


@pytest.fixture
async def flaky(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Flaky]:
    """One that nothing disturbs yet."""
    monkeypatch.setattr(publisher_module, "_RETRY_CAP_S", 0.0)
    queue = Flaky(Servers(redis_url), 1)
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
    """Each number of steps between two words of a job, up to more than are kept."""
    for _ in range(2):
        await submit(flaky)
    talks, pauses = [worker.start(job) for job in await take(flaky)]
    for pause in range(STEPS + 3):
        await worker.step(talks, pauses)
        for n in range(pause):
            await worker.step(talks)
            entries = await flaky.entries(pauses.job.id, 0)
            assert words_in(pauses, entries) == worker.produced[pauses.job.lease_id], (pause, n)
    assert n_steps(store) == STEPS
    entries = await flaky.entries(talks.job.id, 0)
    assert words_in(talks, entries) == worker.produced[talks.job.lease_id]
    for buffer in (talks, pauses):
        assert await worker.finish(buffer) == "ok"
    store.delete(keys.steps(0, WORKER))
    for buffer in (talks, pauses):
        *entries, end = await flaky.entries(buffer.job.id, 0)
        assert words_in(buffer, entries) == worker.produced[buffer.job.lease_id]
        assert end.end == "completed"


async def test_the_logs_of_jobs_are_written_once_in_many_steps(
    flaky: Flaky, store: Redis, worker: Worker
) -> None:
    for _ in range(4):
        await submit(flaky)
    buffers = [worker.start(job) for job in await take(flaky)]
    for _ in range(4 * FLUSH_AFTER):
        await worker.step(*buffers)
    for buffer in buffers:
        assert store.llen(keys.log(0, buffer.job.id)) == 4


async def test_a_call_whose_reply_was_lost_leaves_one_step(
    flaky: Flaky, store: Redis, gateway: Listener, worker: Worker
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


async def test_a_log_flush_is_made_though_who_spoke_with_it_is_lost(
    flaky: Flaky, store: Redis, worker: Worker
) -> None:
    """The step with which it leaves has nothing else to say when it is made anew."""
    for _ in range(3):
        await submit(flaky)
    pauses, leaves, talks = [worker.start(job) for job in await take(flaky)]
    await worker.step(pauses)
    for _ in range(FLUSH_AFTER - 2):
        await worker.step(talks)

    async def cancel() -> None:
        await flaky.cancel(leaves.job.id, TENANT)

    flaky.before = [cancel]
    await worker.step(leaves)
    for _ in range(STEPS):
        await worker.step(talks)
    assert words_in(pauses, await flaky.entries(pauses.job.id, 0)) == [word(pauses, 0)]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_log_flush_is_not_made_of_a_job_that_is_somebody_elses(
    flaky: Flaky, store: Redis, worker: Worker, stream: bool
) -> None:
    """Its run has failed (a bug), so nothing renewed the lease or discarded the buffer."""
    for _ in range(2):
        await submit(flaky, stream=stream)
    broken, talks = [worker.start(job) for job in await take(flaky)]
    await worker.step(broken, talks)
    del worker.runs[broken.job.id]
    await reap(flaky, store, broken.job)
    log: Any = store.lrange(keys.log(0, broken.job.id), 0, -1)
    for _ in range(STEPS):
        await worker.step(talks)
    assert store.lrange(keys.log(0, broken.job.id), 0, -1) == log


async def test_a_fenced_worker_goes_on_and_new_listeners_hear_it(
    flaky: Flaky, gateway: Listener, other_gateway: Listener, worker: Worker
) -> None:
    for stream in (True, False, True):
        await submit(flaky, stream=stream, gateway=GATEWAY if stream else "")
    streamed, whole, quiet = buffers = [worker.start(job) for job in await take(flaky)]
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
        assert words_in(buffer, await flaky.entries(buffer.job.id, 0)) == [
            word(buffer, n) for n in range(3)
        ]
    assert worker.lost == {}


async def test_who_listens_between_the_last_step_and_the_end_hears_the_end(
    flaky: Flaky, other_gateway: Listener, worker: Worker
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
    flaky: Flaky, gateway: Listener, worker: Worker
) -> None:
    for _ in range(3):
        await submit(flaky)
    stays, cancelled, reaped = buffers = [worker.start(job) for job in await take(flaky)]
    await worker.step(*buffers)

    async def change() -> None:
        await flaky.cancel(cancelled.job.id, TENANT)
        await flaky.release([reaped.job], "drained", blame=False)
        gateway.messages()

    flaky.before = [change]
    await worker.step(*buffers)
    assert worker.lost == {cancelled.job.lease_id: "cancelled", reaped.job.lease_id: "failed"}
    assert [(frame[0].decode(), frame[1]) for frame in gateway.frames()] == [(stays.job.id, 2)]
    assert [len(await flaky.entries(buffer.job.id, 0)) for buffer in buffers] == [2, 2, 2]


async def test_a_job_that_comes_late_is_not_spoken_of_before_a_renewal(
    flaky: Flaky, control: Listener, gateway: Listener, other_gateway: Listener, worker: Worker
) -> None:
    """It was handed over, then changed; its worker received the change first, and the job last."""
    (talks,) = [worker.start(await lease(flaky))]
    await worker.step(talks)
    await take(flaky, offer=2)
    for _ in range(2):
        await submit(flaky)
    late, lost = control.handed(flaky)
    assert late.fence_token == worker.lease.fence_tokens[0] != ""
    await flaky.watch(late.id, "gw-2", follow=True)
    await flaky.cancel(lost.id, TENANT)
    await worker.step(talks)
    assert worker.lease.fence_tokens[0] not in {late.fence_token, ""}
    gateway.messages()
    renewals = flaky.renewals
    spoken, silent = worker.start(late), worker.start(lost)
    await worker.step(talks, spoken, silent)
    assert flaky.renewals == renewals + 1
    assert worker.lost == {lost.lease_id: "cancelled"}
    assert [frame[0].decode() for frame in gateway.frames()] == [talks.job.id, late.id]
    assert [(frame[0].decode(), frame[1]) for frame in other_gateway.frames()] == [(late.id, 1)]
    assert [e.end for e in await flaky.entries(lost.id, 0)] == ["cancelled"]
    await worker.step(talks, spoken)
    assert flaky.renewals == renewals + 1


async def test_a_job_that_comes_late_may_not_even_end_before_a_renewal(
    flaky: Flaky, other_gateway: Listener, worker: Worker
) -> None:
    await worker.lease.renew(0)
    job = await lease(flaky)
    await flaky.watch(job.id, "gw-2", follow=False)
    await worker.lease.renew(0)  # without it
    assert await worker.finish(worker.start(job)) == "ok"
    assert [frame[1:3] for frame in other_gateway.frames()] == [(1, FrameKind.DONE)]


async def test_a_worker_whose_fence_token_redis_has_lost_begins_another(
    flaky: Flaky, store: Redis, worker: Worker
) -> None:
    buffer = worker.start(await lease(flaky))
    await worker.step(buffer)
    store.delete(keys.fence(0, WORKER))
    await worker.step(buffer)
    assert words_in(buffer, await flaky.entries(buffer.job.id, 0)) == [
        word(buffer, n) for n in range(2)
    ]


async def test_a_worker_does_not_speak_of_a_job_whose_lease_redis_has_lost(
    flaky: Flaky, queue: JobQueue, store: Redis, gateway: Listener, worker: Worker
) -> None:
    """After a power cut, or on a replica that was behind: the fencing token is older."""
    await worker.lease.renew(0)
    await submit(flaky)
    kept: dict[bytes, Any] = {key: store.dump(key) for key in store.scan_iter()}
    buffer = worker.start(await take_one(flaky))
    await worker.step(buffer)
    store.flushall()
    for key, value in kept.items():
        store.restore(key, 0, value)
    store.client_kill_filter(_type="normal", skipme=True)
    new = await take_one(queue, worker="w-2")
    gateway.messages()
    await say(queue, new, 1, "new")
    await worker.step(buffer)
    assert [frame[1] for frame in gateway.frames()] == [1]
    assert worker.lost == {buffer.job.lease_id: "in_progress"}
    assert texts(await queue.entries(new.id, 0)) == [b"new"]


@pytest.mark.parametrize("lost", ["", "call", "reply"])
async def test_a_worker_that_has_ended_says_nothing_more(
    flaky: Flaky, store: Redis, worker: Worker, lost: str
) -> None:
    """Not even if a call was on its way."""
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
        for _ in range(20):  # other calls come and go meanwhile
            await flaky.servers.primary.ping()
    assert flaky.n_calls == calls + 1


async def test_shards_have_step_logs_and_fence_tokens_of_their_own(
    flaky: Flaky, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaky.shards = 2
    worker = Worker(flaky)
    jobs = [
        (await take(flaky, shard=shard))[0]
        for shard in (0, 1)
        if await submit(flaky, id=f"job_{shard:03x}{'0' * 24}")
    ]
    talks, pauses = [worker.start(job) for job in jobs]
    await worker.step(talks)
    for _ in range(2):
        await worker.step(pauses)
    for _ in range(STEPS):
        await worker.step(talks)
    assert (n_steps(store, shard=0), n_steps(store, shard=1)) == (STEPS, 2)
    # The first entry alone: no step of its shard has followed the second.
    assert store.llen(keys.log(1, pauses.job.id)) == 1
    renewals = flaky.renewals
    await flaky.watch(pauses.job.id, "gw-2", follow=True)
    await worker.step(talks)
    assert flaky.renewals == renewals
    await worker.step(talks, pauses)
    assert flaky.renewals == renewals + 1
    for buffer in (talks, pauses):
        words = words_in(buffer, await flaky.entries(buffer.job.id, 0))
        assert words == worker.produced[buffer.job.lease_id]
    await end([worker.task])


# --- everything at once, at random ---


class Chance:
    """A worker with jobs that talk and pause, and everybody who can disturb it."""

    def __init__(
        self,
        worker: Worker,
        store: Redis,
        listeners: dict[str, Listener],
        control: Listener,
        seed: int,
    ) -> None:
        self.worker = worker
        self.queue = worker.queue
        self.store = store
        self.random = random.Random(seed)
        self.listeners = listeners
        self.control = control
        self.buffers: list[OutputBuffer] = []
        """Those in hand."""
        self.past: list[OutputBuffer] = []
        """Those that are not in hand any more, and whose jobs have ended."""
        self.paces: dict[str, float] = {}
        """How often a job produces output."""
        self.watched_from: dict[tuple[str, str], int] = {}
        """By gateway and job: the first number that the gateway must receive."""
        self.received: dict[tuple[str, str], set[int]] = {}
        self.queue.lose = self.lose

    def lose(self) -> str:
        return self.random.choices(["", "call", "reply"], [20, 1, 1])[0]

    # --- others ---

    async def bring(self) -> None:
        """Another job, handed over or claimed."""
        if len(self.buffers) > 7:
            return
        handed = self.random.random() < 0.5
        for again in await take(self.queue, 8, offer=9 * handed):
            self.take_up(again)
        job = await submit(
            self.queue,
            stream=self.random.random() < 0.6,
            gateway=self.random.choice(["", GATEWAY]),
            deadline_s=60,
        )
        (late,) = self.control.handed(self.queue) if handed else await take(self.queue)
        assert late.id == job.id
        if self.random.random() < 0.3:  # before its worker knows of it
            await self.change(late)
        self.take_up(late)

    def take_up(self, job: LeasedJob) -> None:
        buffer = self.worker.start(job)
        self.buffers.append(buffer)
        self.paces[job.lease_id] = self.random.choice([1.0, 0.9, 0.3, 0.05, 0.02])

    async def change(self, job: LeasedJob | None = None) -> None:
        """Somebody ends, takes or watches a job."""
        if job is None:
            if not self.buffers:
                return
            job = self.random.choice(self.buffers).job
        pace = self.random.random()
        if pace < 0.5:
            await self.watch(job)
        elif pace < 0.7:
            await cancel(self.queue, self.store, job)
        elif pace < 0.8:
            await expire(self.queue, self.store, job)
        elif pace < 0.9:
            await release(self.queue, self.store, job)
        elif self.is_held(job):
            await reap(self.queue, self.store, job)

    def lease_id(self, job: LeasedJob) -> str:
        """Of the last lease; empty if the job was taken back since."""
        packed: Any = self.store.hget(keys.job(0, job.id), "lease")
        return read_lease(packed).lease_id

    def is_held(self, job: LeasedJob) -> bool:
        state = self.store.hget(keys.job(0, job.id), "state")
        return state == b"in_progress" and self.lease_id(job) == job.lease_id

    async def watch(self, job: LeasedJob) -> None:
        gateway = self.random.choice(list(self.listeners))
        sees = self.random.random() < 0.5
        if not self.is_held(job):
            return
        await self.queue.watch(job.id, gateway, follow=sees)
        if job.stream or sees:
            last = await self.queue.last_entry(job.id)
            self.watched_from.setdefault((gateway, job.lease_id), last.seq + 1 if last else 1)

    async def forget(self) -> None:
        self.store.delete(keys.fence(0, WORKER))

    async def keep(self) -> None:
        """As the lease keeper does, which bears failures."""
        with contextlib.suppress(RedisTimeoutError):
            await self.worker.lease.renew(0)

    # --- the worker ---

    async def step(self) -> None:
        while self.random.random() < 0.2:
            disturbance = self.random.choice([self.change, self.change, self.forget, self.keep])
            self.queue.before.append(disturbance)
        senders = [x for x in self.buffers if self.random.random() < self.paces[x.job.lease_id]]
        if senders and self.random.random() < 0.2:
            senders = senders[:1]
        if senders:
            await self.worker.step(*senders)
        for buffer in self.buffers[:]:
            if buffer.discarded:
                await self.part_with(buffer)
            elif self.random.random() < 0.01:
                await self.worker.finish(buffer, produces=self.random.random() < 0.5)
                await self.part_with(buffer)

    async def part_with(self, buffer: OutputBuffer) -> None:
        self.buffers.remove(buffer)
        run = self.worker.runs.get(buffer.job.id)
        if run is not None and run.buffer is buffer:
            del self.worker.runs[buffer.job.id]
        job = await self.queue.get(buffer.job.id)
        assert job is not None
        if job.state is JobState.QUEUED:  # nobody has seen anything of it
            for again in await take(self.queue):
                self.take_up(again)
        elif self.lease_id(buffer.job) == buffer.job.lease_id:
            assert job.state is not JobState.IN_PROGRESS
            self.past.append(buffer)

    # --- what must hold ---

    def listen(self) -> None:
        for gateway, listener in self.listeners.items():
            for id_, seq, kind, *_ in listener.frames():
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
        job, words = buffer.job, self.worker.produced[buffer.job.lease_id]
        entries = await self.queue.entries(job.id, 0)
        after = self.random.randrange(len(entries) + 2)
        assert await self.queue.entries(job.id, after) == entries[after:]
        if not whole:
            assert entries[-1].end
            last = await self.queue.last_entry(job.id)
            assert last == entries.pop()
        found = words_in(buffer, entries)
        # A worker that learns only from Redis' silence what has become of a step can't say whether
        # the last word of a job that it has lost came.
        extra = [word(buffer, len(words))] if len(found) > len(words) and not whole else []
        assert found == [*words, *extra]
        for gateway in self.listeners:
            first = self.watched_from.get((gateway, job.lease_id))
            if first is not None and whole:
                numbers = self.received.get((gateway, job.id), set())
                assert set(range(first, len(words) + 1)) <= numbers, "a listener has missed a frame"


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_happens_what_was_said_is_read(
    flaky: Flaky,
    store: Redis,
    gateway: Listener,
    other_gateway: Listener,
    control: Listener,
    worker: Worker,
    seed: int,
) -> None:
    listeners = {GATEWAY: gateway, "gw-2": other_gateway}
    chance = Chance(worker, store, listeners, control, seed)
    for _ in range(300):
        if chance.random.random() < 0.1:
            await chance.bring()
        await chance.step()
        chance.listen()
        await chance.check()
    assert len(chance.past) > 5


async def test_a_worker_goes_on_when_redis_has_forgotten_the_scripts(
    flaky: Flaky, store: Redis, worker: Worker
) -> None:
    buffer = worker.start(await lease(flaky))
    await worker.step(buffer)
    store.function_flush()
    store.script_flush()
    for _ in range(3):
        await worker.step(buffer)
    assert [e.seq for e in await flaky.entries(buffer.job.id, 0)] == [1, 2, 3, 4]
