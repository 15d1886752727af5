"""Submitted jobs: what is stored, what is refused, and who is told."""

from __future__ import annotations

import pytest

from shared.job.errors import IdempotencyKeyReused, QueueFull, QuotaExceeded, TooManyWaiting
from shared.job.job import IdempotencyKey, Origin
from shared.job.rules import DEFAULT, FLEX, PRIORITY, Quotas
from shared.job.states import JobState
from shared.store.queue import Control, JoinedJob, Room
from tests.harness.servers import RedisServer
from tests.store.conftest import POOL, TENANT, Case, make_job, missed_without, open_case


async def test_a_job_is_read_as_it_was_submitted(case: Case) -> None:
    body = bytes(range(256)) * 40
    origin = Origin("00-trace", "request-7")
    job = await case.submit(
        body=body, metadata={"a": "ä"}, keep_s=2.5, deadline_s=9.0, origin=origin, notify="job",
        key="key-1", reserved="7", weight=2.0, prefixes=b"12345678",
    )  # fmt: skip
    (found,) = await case.queue.get(job.id)
    assert found is not None
    assert (found.state, found.pool, found.lane, found.tenant) == (
        JobState.QUEUED, POOL, DEFAULT, TENANT,
    )  # fmt: skip
    assert (found.metadata, found.origin, found.notify, found.key) == (
        {"a": "ä"}, origin, "job", "key-1",
    )  # fmt: skip
    assert found.total_deadline_s == 9.0
    assert found.deadline_at == found.created_at + 9.0
    assert await case.queue.stored_request(job.id) == (body, "")
    assert await case.queue.request_bytes(job.id) == len(body)
    assert await case.queue.get("job_0", make_job().id) == [None, None]


@missed_without(
    "if made[id] or not are_new and redis.call('EXISTS', names[n]) == 1 then", "if false then"
)
async def test_a_repeated_call_makes_nothing_twice(case: Case) -> None:
    job, worker = make_job(), case.worker()
    assert await case.submit_all([job, job]) == [1, 1]
    before = case.server.xlen(f"{case.base}queue:{POOL}")
    assert await case.submit_all([job]) == [1]
    held = await worker.claim()
    assert await case.submit_all([job]) == [0]
    assert (before, [each.id for each in held]) == (1, [job.id])
    assert await worker.claim() == []


async def test_a_full_lane_refuses_and_stores_nothing(case: Case) -> None:
    first, second = make_job(), make_job()
    await case.submit_all([first], max_depth=1)
    before = case.names()
    with pytest.raises(QueueFull):
        await case.submit_all([second], max_depth=1)
    assert case.names() == before
    await case.submit_all([make_job(lane=FLEX)], max_depth=1)  # another lane
    await case.queue.cancel(TENANT, first.id)
    await case.submit_all([second], max_depth=1)


@missed_without(
    "depth >= max_depth and depth >= max_depth + idle_room(job.pool)", "depth >= max_depth"
)
async def test_jobs_that_idle_workers_have_room_for_do_not_fill_a_lane(case: Case) -> None:
    await case.worker(room=8).claim()
    assert await case.submit_all([make_job() for _ in range(3)], max_depth=2) == [1, 2, 3]


async def test_quotas_of_a_tenant(kind: RedisServer) -> None:
    async with open_case(kind, Quotas(kept_bytes=50_000, waiting=2)) as case:
        jobs = [await case.submit(body=b"x" * 30_000), await case.submit()]
        with pytest.raises(TooManyWaiting):
            await case.submit()
        await case.submit(tenant="other")
        with pytest.raises(QuotaExceeded):
            await case.submit(lane=FLEX, body=b"x" * 10_000)
        await case.submit(lane=FLEX)
        await case.queue.cancel(TENANT, jobs[0].id)
        await case.queue.delete(jobs[0].id)
        await case.submit(lane=PRIORITY, body=b"x" * 30_000)  # all was given back


async def test_a_large_body_lies_in_a_key_of_its_own(case: Case) -> None:
    body = bytes(n % 251 for n in range(300_000))
    job, small = make_job(body=body), make_job(body=b"{}")
    await case.submit_all([job, small])
    key = f"{case.base}body:{job.id}"
    assert case.server.ttl(key) == -1
    assert await case.queue.stored_request(job.id) == (body, "")
    assert await case.queue.request_bytes(job.id) == len(body)
    assert await case.submit_all([job]) == [2]
    worker = case.worker()
    held, other = await worker.claim()
    assert (held.body, held.body_bytes) == (b"", len(body))
    assert (other.body, other.body_bytes) == (b"{}", 0)
    assert await case.queue.body(job.id, held.body_bytes) == body
    await worker.end(held)
    assert 50_000 < case.server.pttl(key) <= 60_000
    await case.queue.delete(job.id)
    assert case.server.exists(key) == 0
    assert await case.queue.body(job.id, len(body)) is None
    assert await case.queue.stored_request(job.id) == (b"", "")


async def test_a_job_whose_large_body_is_lost_fails(case: Case) -> None:
    lost, job = await case.submit(body=b"x" * 70_000), await case.submit()
    case.server.delete(f"{case.base}body:{lost.id}")
    assert [held.id for held in await case.worker().claim()] == [job.id]
    assert case.record(lost.id)["error_code"] == "record_damaged"


@missed_without("known[2] == body_hash and 'joined' or 'reused'", "'joined'")
async def test_an_idempotency_key_names_one_job(case: Case) -> None:
    def keyed(body: bytes, tenant: str = TENANT) -> dict[str, object]:
        key = IdempotencyKey.of(tenant, "/v1/x", "key", body)
        return {"idempotency": key, "body": body, "tenant": tenant}

    first, second, third = (make_job(**keyed(b"{}")) for _ in range(3))
    assert await case.queue.find_keyed(first) is None
    assert await case.submit_all([first, second]) == [1, JoinedJob(first.id)]
    assert await case.submit_all([third]) == [JoinedJob(first.id)]
    assert await case.queue.find_keyed(third) == JoinedJob(first.id)
    with pytest.raises(IdempotencyKeyReused):
        await case.submit(**keyed(b"{ }"))
    await case.submit(**keyed(b"{}", "other"))
    case.queue.rooms = [Room(quota=1)]
    assert await case.submit_all([third]) == [JoinedJob(first.id)]  # it needs no room
    case.queue.rooms = [Room()]
    held = await case.worker().claim()
    assert len(held) == 2
    await case.queue.cancel(TENANT, first.id)
    assert await case.submit_all([third]) == [JoinedJob(first.id)]  # an ended job is joined
    await case.queue.delete(first.id)
    assert await case.submit_all([third]) == [1]


@missed_without("math.max(0, (total - count) / n)", "0")
async def test_idle_workers_are_told_of_jobs_so_that_their_rooms_are_even(case: Case) -> None:
    workers = [case.worker(f"w-{n}", room=room) for n, room in enumerate((6, 4, 1))]
    for worker in workers:
        assert await worker.claim() == []
    await case.submit_all([make_job() for _ in range(4)])
    assert [worker.told_to(Control.CLAIM) for worker in workers] == [3, 1, 0]
    assert len(await workers[0].claim(3)) == 3
    await case.submit_all([make_job() for _ in range(9)])
    assert [worker.told_to(Control.CLAIM) for worker in workers] == [3, 3, 1]  # all their room


@missed_without("0.999 - now_us() % 1e9 / 1.01e9", "0.5")
async def test_jobs_one_after_the_other_are_spread_over_idle_workers(case: Case) -> None:
    workers = [case.worker(f"w-{n}") for n in range(3)]
    for worker in workers:
        await worker.claim()
    for turn in range(6):
        await case.submit()
        assert [worker.told_to(Control.CLAIM) for worker in workers].index(1) == turn % 3
        await workers[turn % 3].end(await workers[turn % 3].claim_one())
        await workers[turn % 3].claim()


@missed_without("(is_home and 0 or AWAY)", "0")
async def test_a_worker_away_from_home_is_told_of_what_those_at_home_have_no_room_for(
    case: Case,
) -> None:
    home, away = case.worker("w-1", room=2), case.worker("w-2", room=5)
    await home.claim()
    await away.claim(at_home=False)
    assert (await case.queue.free_room(POOL, but_of="")).room == 2
    await case.submit_all([make_job() for _ in range(2)])
    assert (home.told_to(Control.CLAIM), away.told_to(Control.CLAIM)) == (2, 0)
    await case.submit_all([make_job() for _ in range(3)])
    assert (home.told_to(Control.CLAIM), away.told_to(Control.CLAIM)) == (0, 3)


@missed_without("          lost = true\n", "          lost = false\n")
async def test_a_worker_that_does_not_hear_is_passed_over(case: Case) -> None:
    await case.worker("w-1", room=9, heard=False).claim()
    heard = case.worker("w-2", room=1)
    await heard.claim()
    await case.submit()
    assert heard.told_to(Control.CLAIM) == 1


async def test_flex_jobs_make_room_for_better_lanes(case: Case) -> None:
    await case.submit_all([make_job(lane=FLEX) for _ in range(4)])
    worker = case.worker(room=4)
    held = await worker.claim(yieldable=0)
    await case.submit(lane=FLEX)
    assert worker.told_to(Control.YIELD) == 0
    urgent = await case.submit()
    assert worker.told_to(Control.YIELD) == 1
    await case.submit_all([make_job() for _ in range(9)])
    assert worker.told_to(Control.YIELD) == 3  # it has no more
    gone = held[0]
    assert await case.queue.give_back([gone], "handed_over", "handed_back") == {gone.id: "queued"}
    del worker.jobs[gone.id]
    assert [job.id for job in await worker.claim(yieldable=0)] == [urgent.id]
