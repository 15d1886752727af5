"""Emit: what it writes and publishes, and what Redis has lost; the rest is in tests/store."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from shared.job.frames import FrameKind
from shared.job.job import LeasedJob, new_job_id
from shared.job.job_log import pack_segment
from shared.job.replies import Fenced
from shared.job.states import JobEvent, JobState
from shared.job.step_log import STEPS, JobOutput, LogFlush
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.scripts.emit import make_step
from shared.store.subscription import channel_commands
from tests.redis.conftest import (
    GATEWAY,
    LEASE_S,
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
    expire_lease,
    finish,
    lease,
    log_entries,
    log_flush,
    next_fence_token,
    output,
    renew,
    submit,
)


def calls(store: Redis, *commands: str) -> int:
    """How often these commands were called since the last reset of the statistics."""
    statistics = store.info("commandstats")
    return sum(statistics.get(f"cmdstat_{name}", {}).get("calls", 0) for name in commands)


def published(store: Redis) -> int:
    return calls(store, channel_commands().publish.lower())


def script_calls(store: Redis) -> int:
    return calls(store, "fcall", "evalsha")


def everything(store: Redis) -> dict[bytes, bytes | None]:
    """All that Redis holds."""
    return {key: store.dump(key) for key in store.scan_iter()}


def steps_of(store: Redis, worker: str = WORKER) -> list[list[tuple[str, int]]]:
    """The job and number of each frame in a worker's step log, by step."""
    parts: list[Any] = store.lrange(keys.steps(0, worker), 0, -1)
    return [[(id_.decode(), seq) for id_, seq, *_ in decode(frames)] for frames in parts[1::2]]


# --- who may write ---


@pytest.mark.parametrize("change", ["", "0" * 12, "{}0", " {}", "{}\0"])
async def test_a_wrong_fence_token_writes_nothing(
    queue: JobQueue, store: Redis, gateway: ChannelSubscriber, change: str
) -> None:
    fence_token = await next_fence_token(queue)
    job = await lease(queue)
    step = make_step([output(job, 1), last_output(job, 1)], [LogFlush(job.id, b"\1\0")])
    before = everything(store)
    with pytest.raises(Fenced):
        await queue.emit(0, WORKER, change.format(fence_token), step)
    assert everything(store) == before
    assert gateway.frames() == []


@pytest.mark.parametrize("again", [False, True])
async def test_without_a_fence_nothing_is_written(
    queue: JobQueue, store: Redis, again: bool
) -> None:
    fence_token = await next_fence_token(queue)
    job = await lease(queue)
    store.delete(keys.fence(0, WORKER))
    for known in (fence_token, ""):
        with pytest.raises(Fenced):
            await queue.emit(0, WORKER, known, make_step([output(job, 1)]), repeated=again)
    assert await log_entries(queue, job.id, 0) == []


async def test_another_workers_fence_token_writes_nothing(queue: JobQueue) -> None:
    job = await lease(queue)
    for other in (
        await next_fence_token(queue, "w-2"),
        await next_fence_token(queue, f"{WORKER}0"),
    ):
        with pytest.raises(Fenced):
            await queue.emit(0, WORKER, other, make_step([output(job, 1)]))


async def test_a_fence_token_expires_with_the_lease(queue: JobQueue, store: Redis) -> None:
    fence_token, fence = await next_fence_token(queue), keys.fence(0, WORKER)
    assert 0 < store.pttl(fence) <= LEASE_S * 1000
    store.pexpire(fence, 1000)
    assert (await queue.renew(0, WORKER, fence_token, LEASE_S, [])).fence_token == fence_token
    assert store.pttl(fence) > 1000


async def test_a_job_that_is_gone_is_lost(queue: JobQueue, store: Redis) -> None:
    job = await lease(queue)
    store.flushall()
    assert await emit_token(queue, job, 1) == {job.id: "gone"}
    # The renewal has written this, not the output.
    assert store.keys() == [keys.fence(0, WORKER).encode()]


async def test_a_renewal_reports_lost_jobs_as_emit_does(queue: JobQueue, store: Redis) -> None:
    for _ in range(3):
        await submit(queue)
    mine, cancelled, gone = await claim(queue)
    await queue.cancel(cancelled.id, TENANT)
    store.delete(keys.job(0, gone.id))
    expected = {cancelled.id: "cancelled", gone.id: "gone"}
    assert await renew(queue, WORKER, [mine, cancelled, gone]) == expected
    assert await emit(queue, [output(job, 1) for job in (mine, cancelled, gone)]) == expected
    stranger = mine._replace(id=new_job_id(1))
    assert await renew(queue, WORKER, [stranger]) == {stranger.id: "gone"}


async def test_a_worker_cannot_renew_anothers_lease(queue: JobQueue, store: Redis) -> None:
    old = await lease(queue)
    expire_lease(store, old)
    await queue.reap(0, 1.0)
    new = await claim_one(queue, worker="w-2")
    assert await renew(queue, WORKER, [old]) == {old.id: "in_progress"}
    (entry,) = store.xpending_range(keys.queue(0, "pool", "retry"), keys.GROUP, "-", "+", 9)
    assert entry["consumer"] == b"w-2"
    assert await renew(queue, "w-2", [new]) == {}


# --- the same call again ---


async def test_a_repeated_call_appends_and_publishes_nothing(
    queue: JobQueue, store: Redis, gateway: ChannelSubscriber
) -> None:
    fence_token = await next_fence_token(queue)
    job = await lease(queue)
    for seq in (1, 2):
        step = make_step([output(job, seq)])
        assert await queue.emit(0, WORKER, fence_token, step) == {}
        before = everything(store)
        for _ in range(2):
            assert await queue.emit(0, WORKER, fence_token, step, repeated=True) == {}
        assert everything(store) == before
    assert [e.seq for e in await log_entries(queue, job.id, 0)] == [1, 2]
    assert [frame[1] for frame in gateway.frames()] == [1, 2]


async def test_a_repeated_log_flush_is_stored_once(queue: JobQueue, store: Redis) -> None:
    for _ in range(2):
        await submit(queue)
    on, pauses = await claim(queue)
    words = output(pauses, 1)
    await emit(queue, [words])
    step, fence_token = (
        make_step([output(on, 1)], [log_flush(words, 1)]),
        await next_fence_token(queue),
    )
    assert await queue.emit(0, WORKER, fence_token, step) == {}
    before = everything(store)
    assert await queue.emit(0, WORKER, fence_token, step, repeated=True) == {}
    assert everything(store) == before
    assert store.llen(keys.log(0, pauses.id)) == 1


async def test_a_repeated_log_flush_that_never_arrived_is_applied(
    queue: JobQueue, store: Redis
) -> None:
    job = await lease(queue)
    first, second = output(job, 1), output(job, 2)
    await emit(queue, [first], log_flushes=[log_flush(first, 1)])
    await emit(queue, [second], log_flushes=[log_flush(second, 2)], again=True)
    assert store.llen(keys.log(0, job.id)) == 2
    assert [e.seq for e in await log_entries(queue, job.id, 0)] == [1, 2]


# --- which gateways receive it ---


async def test_one_message_per_gateway_however_many_jobs(
    queue: JobQueue, store: Redis, gateway: ChannelSubscriber, other_gateway: ChannelSubscriber
) -> None:
    for i in range(64):
        await submit(queue, gateway=GATEWAY if i % 2 else "gw-2")
    jobs = await claim(queue)
    store.config_resetstat()
    assert await emit(queue, [output(job, 1) for job in jobs]) == {}
    assert published(store) == 2
    mine, others = gateway.messages(), other_gateway.messages()
    assert (len(mine), len(others)) == (1, 1)
    ids = [[frame[0].decode() for frame in decode(message)] for message in (mine[0], others[0])]
    assert ids == [[job.id for job in jobs[1::2]], [job.id for job in jobs[::2]]]


async def test_one_message_for_a_gateway_that_shares_jobs_with_others(
    queue: JobQueue, store: Redis, gateway: ChannelSubscriber, other_gateway: ChannelSubscriber
) -> None:
    await submit(queue)
    await submit(queue)
    alone, shared = await claim(queue)
    await queue.watch(shared.id, "gw-2", follow=True)
    store.config_resetstat()
    await emit(queue, [output(alone, 1), output(shared, 1)])
    assert published(store) == 2
    assert [frame[0].decode() for frame in gateway.frames()] == [alone.id, shared.id]
    assert [frame[0].decode() for frame in other_gateway.frames()] == [shared.id]


async def test_a_job_without_watchers_is_logged_and_not_published(
    queue: JobQueue, store: Redis
) -> None:
    job = await lease(queue, gateway="")
    store.config_resetstat()
    await emit_token(queue, job, 1)
    assert published(store) == 0
    assert len(await log_entries(queue, job.id, 0)) == 1


# --- what is written ---


async def test_a_step_of_many_jobs_is_one_call_and_one_write(queue: JobQueue, store: Redis) -> None:
    fence_token = await next_fence_token(queue)
    for _ in range(256):
        await submit(queue)
    jobs = await claim(queue, 256)
    store.config_resetstat()
    step = make_step([output(job, 1) for job in jobs])
    assert await queue.emit(0, WORKER, fence_token, step) == {}
    assert script_calls(store) == calls(store, "rpush") == published(store) == 1
    assert steps_of(store) == [[(job.id, 1) for job in jobs]]


async def test_a_step_log_keeps_the_last_steps(queue: JobQueue, store: Redis) -> None:
    job = await lease(queue)
    for seq in range(1, STEPS + 4):
        await emit_token(queue, job, seq)
    assert steps_of(store) == [[(job.id, seq)] for seq in range(4, STEPS + 4)]
    assert store.pttl(keys.steps(0, WORKER)) > 1000 * LEASE_S


async def test_a_log_flush_is_stored_in_the_log_of_its_job_only(
    queue: JobQueue, store: Redis, gateway: ChannelSubscriber
) -> None:
    for _ in range(2):
        await submit(queue)
    on, pauses = await claim(queue)
    words = [output(pauses, seq, str(seq)) for seq in (1, 2)]
    for word in words:
        await emit(queue, [word])
    gateway.frames()
    entries = await log_entries(queue, pauses.id, 0)
    segment = pack_segment(1, [log_flush(word, 1).segment[2:] for word in words])
    await emit(queue, [output(on, 1)], log_flushes=[LogFlush(pauses.id, segment)])
    assert store.lrange(keys.log(0, pauses.id), 0, -1) == [segment]
    assert not store.exists(keys.log(0, on.id))
    assert [frame[0].decode() for frame in gateway.frames()] == [on.id]
    assert await log_entries(queue, pauses.id, 0) == entries
    store.delete(keys.steps(0, WORKER))
    assert await log_entries(queue, pauses.id, 0) == entries


async def test_a_call_of_nothing_but_log_flushes_is_no_step(queue: JobQueue, store: Redis) -> None:
    job = await lease(queue)
    words = output(job, 1)
    await emit(queue, [words])
    store.config_resetstat()
    await emit(queue, [], log_flushes=[log_flush(words, 1)])
    assert published(store) == 0
    assert steps_of(store) == [[(job.id, 1)]]
    assert [e.seq for e in await log_entries(queue, job.id, 0)] == [1]


# --- what Redis has lost ---


@pytest.mark.parametrize("seq", [2, 3, 9])
async def test_a_number_that_is_too_high_leaves_a_hole(
    queue: JobQueue, store: Redis, gateway: ChannelSubscriber, seq: int
) -> None:
    """Redis was killed and has lost the entries between."""
    job = await lease(queue)
    first = output(job, 1)
    await emit(queue, [first], log_flushes=[log_flush(first, 1)])
    for number in range(2, seq):
        await emit_token(queue, job, number)
    store.delete(keys.steps(0, WORKER))
    gateway.frames()
    assert await emit_token(queue, job, seq, "behind") == {}
    assert await emit(queue, [output(job, seq, "behind")], again=True) == {}
    entries = await log_entries(queue, job.id, 0)
    assert [(e.seq, e.lost) for e in entries] == [
        (number, 1 < number < seq) for number in range(1, seq + 1)
    ]
    assert entries[-1].items == (b"behind",)
    assert [frame[1] for frame in gateway.frames()] == [seq]
    assert await emit_token(queue, job, seq + 1) == {}
    assert [e.seq for e in await log_entries(queue, job.id, seq)] == [seq + 1]


async def test_a_job_whose_log_has_a_hole_fails_and_its_end_is_found_at_its_number(
    queue: JobQueue, store: Redis, gateway: ChannelSubscriber
) -> None:
    job = await lease(queue)
    first = output(job, 1)
    await emit(queue, [first], log_flushes=[log_flush(first, 1)])
    for seq in (2, 3):
        await emit_token(queue, job, seq)
    store.delete(keys.steps(0, WORKER))
    gateway.frames()
    assert await finish(queue, job, 4, answer()) == "failed"
    entries = await log_entries(queue, job.id, 0)
    assert [(e.seq, e.lost, e.end) for e in entries] == [
        (1, False, ""),
        (2, True, ""),
        (3, True, ""),
        (4, False, "failed"),
    ]
    last = await queue.last_entry(job.id)
    assert last == entries[-1]
    assert gateway.frames() == [(job.id.encode(), 4, FrameKind.ENDED, b"", b"")]


# --- the end in the same call ---


def last_output(job: LeasedJob, seq: int, **changes: Any) -> JobOutput:
    """The last output of a job and its end."""
    return output(job, seq, "last", answer(**changes))


async def test_the_last_output_and_the_end_are_one_call_and_one_message(
    queue: JobQueue, store: Redis, gateway: ChannelSubscriber
) -> None:
    fence_token = await next_fence_token(queue)
    job = await lease(queue)
    first = output(job, 1)
    await emit(queue, [first], log_flushes=[log_flush(first, 1)])
    gateway.messages()
    store.config_resetstat()
    assert await queue.emit(0, WORKER, fence_token, make_step([last_output(job, 2)])) == {}
    assert script_calls(store) == 1
    assert published(store) == 1
    (message,) = gateway.messages()
    assert list(decode(message)) == [
        (job.id.encode(), 2, FrameKind.CHUNK, ((0, 0, (2,), b"last"),), (b"last",)),
        (job.id.encode(), 3, FrameKind.DONE, 3, b""),
    ]
    assert [(e.seq, e.items, e.end) for e in await log_entries(queue, job.id, 1)] == [
        (2, (b"last",), ""),
        (3, (), "completed"),
    ]
    ended = await queue.get(job.id)
    assert ended is not None
    assert ended.state is JobState.COMPLETED


async def test_a_worker_that_ends_a_job_keeps_its_fence_token(queue: JobQueue) -> None:
    fence_token = await next_fence_token(queue)
    for _ in range(2):
        await submit(queue)
    ends, on = await claim(queue)
    assert await queue.emit(0, WORKER, fence_token, make_step([last_output(ends, 1)])) == {}
    assert await queue.emit(0, WORKER, fence_token, make_step([output(on, 1)])) == {}


async def test_final_output_without_watchers_is_only_in_the_log(
    queue: JobQueue, store: Redis
) -> None:
    job = await lease(queue, stream=False)
    await emit(queue, [last_output(job, 1, body=b"{}")])
    assert not store.exists(keys.steps(0, WORKER))


async def test_a_call_whose_reply_was_lost_is_repeated_and_changes_nothing(
    queue: JobQueue, store: Redis, gateway: ChannelSubscriber
) -> None:
    fence_token = await next_fence_token(queue)
    job = await lease(queue)
    step = make_step([last_output(job, 1)])
    assert await queue.emit(0, WORKER, fence_token, step) == {}
    assert len(gateway.frames()) == 2
    before = everything(store)
    assert await queue.emit(0, WORKER, fence_token, step, repeated=True) == {}
    assert everything(store) == before
    assert gateway.frames() == []
    other = answer(event=JobEvent.FAIL, error_code="engine_error", status=500)
    step = make_step([end_without_output(job, 2, other)])
    assert await queue.emit(0, WORKER, fence_token, step, repeated=True) == {job.id: "completed"}
    assert everything(store) == before


@pytest.mark.parametrize("lease_id", ["0" * 16, "", "0" * 15, "0" * 17])
async def test_a_wrong_lease_id_ends_nothing(
    queue: JobQueue, store: Redis, gateway: ChannelSubscriber, lease_id: str
) -> None:
    """Not even with the right fencing token."""
    fence_token = await next_fence_token(queue)
    job = await lease(queue)
    before = everything(store)
    step = make_step([end_without_output(job._replace(lease_id=lease_id), 1, answer())])
    assert await queue.emit(0, WORKER, fence_token, step) == {job.id: "in_progress"}
    assert everything(store) == before
    assert gateway.frames() == []


async def test_a_job_whose_hash_is_gone_is_not_ended(
    queue: JobQueue, store: Redis, gateway: ChannelSubscriber
) -> None:
    fence_token = await next_fence_token(queue)
    job = await lease(queue)
    store.delete(keys.job(0, job.id))
    step = make_step([last_output(job, 1)])
    assert await queue.emit(0, WORKER, fence_token, step) == {job.id: "gone"}
    assert FrameKind.DONE not in [frame[2] for frame in gateway.frames()]
    assert not store.exists(keys.job(0, job.id))
    assert await log_entries(queue, job.id, 0) == []


async def test_a_job_that_redis_does_not_have_is_not_ended(queue: JobQueue, store: Redis) -> None:
    job = await lease(queue)
    store.flushall()
    assert await emit(queue, [last_output(job, 1)]) == {job.id: "gone"}
    # The renewal has written this, not the output.
    assert store.keys() == [keys.fence(0, WORKER).encode()]


async def test_a_step_in_which_jobs_go_on_end_and_are_lost(
    queue: JobQueue, store: Redis, gateway: ChannelSubscriber
) -> None:
    for _ in range(5):
        await submit(queue)
    on, ends, cancelled, silent, gone = await claim(queue)
    await queue.cancel(cancelled.id, TENANT)
    store.delete(keys.job(0, gone.id))
    gateway.frames()
    store.config_resetstat()
    lost = await emit(
        queue,
        [
            last_output(cancelled, 1),
            output(on, 1),
            last_output(ends, 1),
            last_output(gone, 1),
            end_without_output(silent, 1, answer(event=JobEvent.FAIL, error_code="engine_error")),
        ],
        worker=WORKER,
    )
    assert lost == {cancelled.id: "cancelled", gone.id: "gone"}
    assert published(store) == 1
    assert [(frame[0].decode(), *frame[1:3]) for frame in gateway.frames()] == [
        (on.id, 1, FrameKind.CHUNK),
        (ends.id, 1, FrameKind.CHUNK),
        (ends.id, 2, FrameKind.DONE),
        (silent.id, 1, FrameKind.DONE),
    ]
    states = [await queue.get(job.id) for job in (on, ends, cancelled, silent)]
    assert [job and job.state for job in states] == [
        JobState.IN_PROGRESS,
        JobState.COMPLETED,
        JobState.CANCELLED,
        JobState.FAILED,
    ]


async def test_a_job_without_watchers_ends_without_a_message(queue: JobQueue, store: Redis) -> None:
    job = await lease(queue, gateway="")
    store.config_resetstat()
    assert await emit(queue, [last_output(job, 1)]) == {}
    assert published(store) == 0
    assert [e.end for e in await log_entries(queue, job.id, 0)] == ["", "completed"]
