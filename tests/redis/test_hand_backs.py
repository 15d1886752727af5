"""Running jobs that a full worker hands back to the queue."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from shared.job.fair_shares import Account, ShareRules
from shared.job.frames import ControlKind, decode_control
from shared.job.job import Job, LeasedJob, NewJob
from shared.job.lanes import DEFAULT, FLEX, PRIORITY
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from tests.harness.waiting import eventually
from tests.redis.conftest import (
    LEASE_S,
    POOL,
    WORKER,
    ChannelSubscriber,
    claim,
    claim_one,
    submit,
)
from tests.redis.worker_loops import chat, serving
from worker.core import hand_backs

LONG = chat(1500, ignore_eos=True)
SHORT = chat(40, ignore_eos=True)
YIELDING = f"{keys.base(0)}{keys.YIELDING}:{POOL}"
A, B = Account(POOL, DEFAULT, "a"), Account(POOL, DEFAULT, "b")


async def hand_back(queue: JobQueue, job: LeasedJob) -> None:
    states = await queue.release([job], "handed_back", blame=False, in_turn=True)
    assert states == {job.id: "queued"}


async def shown(queue: JobQueue, job: NewJob) -> Job:
    found = await queue.get(job.id)
    assert found is not None
    return found


async def charge(queue: JobQueue, tenant: str, cost: float) -> None:
    await queue.renew(0, WORKER, "", LEASE_S, [], {Account(POOL, DEFAULT, tenant): cost})


# --- the queue ---


async def test_a_job_waits_for_its_tenants_turn_as_its_first_one(
    queue: JobQueue, store: Redis
) -> None:
    first = await submit(queue, tenant="a")
    (job,) = await claim(queue)
    second, other = await submit(queue, tenant="a"), await submit(queue, tenant="b")
    await charge(queue, "a", 1000.0)
    await hand_back(queue, job)
    assert await queue.check(0) == {}, "nothing is missing"
    leased = [each.id for _ in range(3) for each in await claim(queue, 1)]
    assert leased == [other.id, first.id, second.id]
    assert not store.exists(keys.turns(0, POOL, DEFAULT))


async def test_the_attempt_does_not_count_and_the_log_is_kept(queue: JobQueue) -> None:
    await submit(queue, tenant="a")
    (job,) = await claim(queue)
    await hand_back(queue, job)
    again = await claim_one(queue)
    assert (again.id, again.attempt, again.generation) == (job.id, 1, 2)
    assert (again.tenant, again.share.lane) == ("a", DEFAULT)


async def test_a_job_that_is_handed_back_can_be_cancelled(queue: JobQueue, store: Redis) -> None:
    submitted = await submit(queue, tenant="a")
    (job,) = await claim(queue)
    await hand_back(queue, job)
    assert await queue.cancel(submitted.id, "a") == "cancelled"
    assert not store.exists(keys.turns(0, POOL, DEFAULT), keys.waiting(0, POOL, DEFAULT))


async def test_a_lease_that_is_lost_is_not_given_back(queue: JobQueue) -> None:
    await submit(queue, tenant="a")
    (job,) = await claim(queue)
    await hand_back(queue, job)
    await claim_one(queue)
    assert await queue.release([job], "handed_back", blame=False, in_turn=True) == {}


async def test_whose_turn_is_next(queue: JobQueue) -> None:
    assert await queue.next_turn(0, POOL, [A]) is None
    await charge(queue, "a", 900.0)
    await charge(queue, "b", 300.0)
    assert await queue.next_turn(0, POOL, [A, B]) is None, "no job waits"
    await submit(queue, tenant="b")
    turn = await queue.next_turn(0, POOL, [A, B])
    assert turn is not None
    assert (turn.account, turn.waiting) == (B, 1)
    assert turn.level == turn.levels[B] == pytest.approx(300, rel=0.2), "levels halve meanwhile"
    assert turn.levels[A] == pytest.approx(3 * turn.levels[B], rel=0.01)
    await submit(queue, tenant="c", lane=PRIORITY)
    turn = await queue.next_turn(0, POOL, [])
    assert turn is not None
    assert turn.account == Account(POOL, PRIORITY, "c")
    assert turn.levels == {}


async def test_a_full_worker_is_told_of_a_job_that_has_to_wait(
    queue: JobQueue, store: Redis, control: ChannelSubscriber
) -> None:
    await submit(queue)
    assert control.messages() == [], "no worker has asked"
    assert await queue.next_turn(0, POOL, [A], yielding=WORKER) is not None
    assert await queue.next_turn(0, POOL, [A], yielding="w-2") is not None
    assert 0 < store.pttl(YIELDING) <= 2000
    await submit(queue, lane=FLEX)
    assert control.messages() == [], "it makes no room for its own lane"
    job = await submit(queue)
    (message,) = control.messages()
    assert decode_control(message) == (ControlKind.LOOK, [job.id.encode()])
    await claim(queue)
    await claim(queue, slots=1)
    await submit(queue)
    kinds = [decode_control(message)[0] for message in control.messages()]
    assert kinds == [ControlKind.JOBS], "it need not wait"


@pytest.mark.parametrize(
    ("deadlines", "has_deadline"),
    [
        ({}, False),
        ({"queue_deadline_s": 60.0}, False),
        ({"run_deadline_s": 60.0}, True),
        ({"deadline_s": 60.0}, True),
    ],
)
async def test_the_worker_knows_whose_deadline_would_go_on(
    queue: JobQueue, deadlines: dict[str, float], has_deadline: bool
) -> None:
    await submit(queue, **deadlines)
    assert (await claim_one(queue)).has_deadline == has_deadline


# --- the worker ---


@contextlib.contextmanager
def rules(queue: JobQueue, hand_backs_s: float) -> Iterator[None]:
    queue.share_rules = ShareRules(hand_backs_s=hand_backs_s)
    try:
        yield
    finally:
        del queue.share_rules


async def fill(queue: JobQueue, loop: Any, count: int, **fields: Any) -> list[NewJob]:
    """Jobs that take all slots, and have made enough output to be handed back."""
    fields = {"tenant": "a", "stream": False, "gateway": "", "body": LONG} | fields
    jobs = [await submit(queue, **fields) for _ in range(count)]

    async def running() -> bool:
        made = [run.buffer.new_tokens for run in loop.runs.values()]
        return len(made) == count and min(made) >= hand_backs.LEAST_TOKENS

    await eventually(running, "they run")
    return jobs


async def is_answered(queue: JobQueue, jobs: list[NewJob]) -> None:
    async def check() -> bool:
        return {(await shown(queue, job)).state for job in jobs} == {"completed"}

    await eventually(check, "all are answered")


def answers(found: Job) -> Any:
    assert found.usage is not None
    return found.result.split(b'"choices"')[1], found.usage["completion_tokens"]


async def test_a_full_worker_hands_a_job_back_for_a_tenant_far_behind(
    queue: JobQueue, redis_url: str
) -> None:
    with rules(queue, hand_backs_s=20.0):
        async with serving(queue, slots=2) as loop:
            await charge(queue, "a", 1e6)
            running = await fill(queue, loop, 2)
            late = await submit(queue, tenant="b", stream=False, gateway="", body=SHORT)
            await is_answered(queue, [late])
            states = {job.id: await shown(queue, job) for job in running}
            moved = [
                job for job in states.values() if len(job.attempts) > 1 or job.state == "queued"
            ]
            assert [job.attempts[0].outcome for job in moved] == ["handed_back"]
            assert (await shown(queue, late)).attempts[0].outcome == "completed"
            await is_answered(queue, running)
            (first, whole), (second, also) = [answers(await shown(queue, job)) for job in running]
            assert whole == also == 1500
            assert first == second, "the answer of the job that was handed back is the same"


async def test_a_flex_job_makes_room_for_the_default_lane_of_its_own_tenant(
    queue: JobQueue, redis_url: str
) -> None:
    with rules(queue, hand_backs_s=20.0):
        async with serving(queue, slots=1) as loop:
            (flex,) = await fill(queue, loop, 1, lane=FLEX)
            urgent = await submit(queue, tenant="a", stream=False, gateway="", body=SHORT)
            await is_answered(queue, [urgent])
            assert (await shown(queue, flex)).attempts[0].outcome == "handed_back"
            await is_answered(queue, [flex])


async def test_a_flex_job_makes_room_at_once(
    queue: JobQueue, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_backs, "_FLEX_LOOK_S", 3600.0)
    with rules(queue, hand_backs_s=0.001):
        async with serving(queue, slots=1) as loop:
            (flex,) = await fill(queue, loop, 1, lane=FLEX)
            store.set(YIELDING, WORKER)
            urgent = await submit(queue, tenant="a", stream=False, gateway="", body=SHORT)
            await is_answered(queue, [urgent])
            assert (await shown(queue, flex)).attempts[0].outcome == "handed_back"


async def test_a_flex_job_makes_room_without_the_bounds_of_other_hand_backs(
    queue: JobQueue, redis_url: str
) -> None:
    """More often than twice, faster than `hand_backs_s`, and before it has made 32 tokens."""
    with rules(queue, hand_backs_s=0.01):
        async with serving(queue, slots=1, step_ms=20) as loop:
            flex = await submit(
                queue,
                tenant="a",
                stream=False,
                gateway="",
                body=chat(60, ignore_eos=True),
                lane=FLEX,
            )
            for lease in range(1, hand_backs.MOST_LEASES + 3):

                async def runs_again(lease: int = lease) -> bool:
                    run = loop.runs.get(flex.id)
                    return run is not None and run.job.generation == lease

                await eventually(runs_again, f"it runs under lease {lease}")
                urgent = await submit(queue, tenant="a", stream=False, gateway="", body=chat(2))
                await is_answered(queue, [urgent])
            await is_answered(queue, [flex])
            found = await shown(queue, flex)
            assert [each.outcome for each in found.attempts[:-1]] == ["handed_back"] * 4
            assert found.usage is not None
            assert found.usage["completion_tokens"] == 60


@pytest.mark.parametrize(
    ("hand_backs_s", "level"), [(0.0, 1e6), (20.0, 0.0)], ids=["switched off", "not far behind"]
)
async def test_the_slot_is_kept(
    queue: JobQueue, store: Redis, hand_backs_s: float, level: float
) -> None:
    lane = DEFAULT if hand_backs_s else FLEX
    with rules(queue, hand_backs_s=hand_backs_s):
        async with serving(queue, slots=1) as loop:
            await charge(queue, "a", level)
            await charge(queue, "b", 0.0 if level else 1e6)
            (running,) = await fill(queue, loop, 1, lane=lane)
            store.set(YIELDING, WORKER)
            late = await submit(queue, tenant="b", stream=False, gateway="", body=SHORT)
            await is_answered(queue, [running, late])
            assert len((await shown(queue, running)).attempts) == 1


async def test_a_job_is_handed_back_twice_at_most(queue: JobQueue, redis_url: str) -> None:
    with rules(queue, hand_backs_s=50.0):
        async with serving(queue, slots=1) as loop:
            await charge(queue, "a", 1e9)
            (running,) = await fill(queue, loop, 1, body=chat(4000, ignore_eos=True))
            late = []
            for lease in range(1, hand_backs.MOST_LEASES + 2):

                async def runs_again(lease: int = lease) -> bool:
                    run = loop.runs.get(running.id)
                    least = hand_backs.LEAST_TOKENS
                    return (
                        run is not None
                        and run.job.generation == lease
                        and run.buffer.new_tokens >= least
                    )

                await eventually(runs_again, f"it runs under lease {lease}")
                late.append(await submit(queue, tenant="b", stream=False, gateway="", body=SHORT))
                if lease <= hand_backs.MOST_LEASES:
                    await is_answered(queue, late)
            await is_answered(queue, [running, *late])
            outcomes = [each.outcome for each in (await shown(queue, running)).attempts]
            assert outcomes == ["handed_back", "handed_back", "completed"]
