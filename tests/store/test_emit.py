"""What workers write: logs, frames, ends, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shared.job.log import DeltaDecoder, DeltaEncoder, frame_head, pack_entry, pack_frame
from shared.job.result import INLINE_RESULT_BYTES, n_pieces
from shared.store import keys
from shared.store.queue import Step
from tests.store.conftest import GATEWAY, POOL, TENANT, Case, beat, missed_without


async def test_a_step_is_in_the_log_and_published(case: Case) -> None:
    gateway = case.gateway()
    worker, held = await case.begin()
    encoder, decoder = DeltaEncoder(), DeltaDecoder()
    chunks = [b'{"text":"\xff\x00%d"}' % n for n in range(9)]
    for chunk in chunks:
        entry = pack_entry([(0, 0, [7], "a\0ä")], encoder.encode([chunk]))
        frame = pack_frame(frame_head(held.id, held.generation), worker.numbers[held.id] + 1, entry)
        step = Step([held.id, worker.next_id(held), entry], messages={GATEWAY: [frame]})
        assert not (await worker.send(step)).refused
    log = await case.log(held)
    assert [entry.position for entry in log] == [(held.generation, n + 1) for n in range(10)]
    assert [decoder.decode(entry.items) for entry in log[1:]] == chunks
    assert log[1].journal == ((0, 0, (7,), "a\0ä".encode()),)
    assert [number for _, number, _ in gateway.frames()] == [*range(2, 11)]
    assert await case.queue.read(held.id, log[4].position, 3) == log[4:7]
    assert await case.queue.positions(0, [held.id]) == [log[-1].position]


async def test_a_step_of_many_jobs_is_one_message_for_each_gateway(case: Case) -> None:
    gateways = [case.gateway(), case.gateway("gw-2")]
    for n in range(6):
        job = await case.submit(gateway=GATEWAY if n % 2 else "gw-2")
    await case.queue.watch(job.id, "gw-2", follow=True)
    worker = case.worker()
    jobs = await worker.claim()
    for gateway in gateways:
        gateway.messages()  # the claim of a job that is followed
    await worker.write(*jobs)
    messages = [gateway.messages() for gateway in gateways]
    assert [[len(message) for message in each] for each in messages] == [[3], [4]]


@missed_without("some_refused and without_refused(ARGV[i + 1]) or ARGV[i + 1]", "ARGV[i + 1]")
async def test_who_has_lost_a_job_writes_nothing_and_its_other_jobs_go_on(case: Case) -> None:
    gateway, worker = case.gateway(), case.worker()
    jobs = [await case.submit() for _ in range(4)]
    held = await worker.claim()
    await case.queue.cancel(TENANT, jobs[0].id)
    await case.queue.give_back([held[1]], "handed_over", "drain")
    case.server.delete(keys.log(0, jobs[2].id), keys.job(0, jobs[2].id))
    gateway.frames()
    emitted = await worker.write(*held)
    assert emitted.refused == {
        jobs[0].id: "cancelled", jobs[1].id: "queued", jobs[2].id: "gone",
    }  # fmt: skip
    assert gateway.frames() == [(jobs[3].id, 2, "x")]  # no frame of what is in no log
    assert await case.events(jobs[0]) == ["claimed", "cancelled"]
    assert await case.events(jobs[1]) == ["claimed", "handed_over"]
    assert await case.log(jobs[2]) == []
    assert worker.lost() == [jobs[0].id, held[0].generation]
    assert not (await worker.write(held[3])).refused


@missed_without("job.generation = math.max(now_us(), last + 1)", "job.generation = 1")
@missed_without("or int(job.generation) ~= ARGV[2] then return 0 end", "then return 0 end")
@missed_without(
    "if not job or job.generation ~= generation or ENDS[job.state] then return refuse(id) end",
    "if not job then return refuse(id) end",
)
@missed_without("job.state == 'in_progress' and int(job.generation) == generation)", "true)")
async def test_an_old_worker_ends_and_restarts_nothing(case: Case) -> None:
    old, new, job = case.worker("w-1"), case.worker("w-2"), await case.submit()
    before = await old.claim_one()
    await old.write(before)
    await case.queue.give_back([before], "handed_over", "drain")
    held = await new.claim_one()
    assert (await old.write(before)).refused == {job.id: "in_progress"}
    assert (await old.end(before)).refused == {job.id: "in_progress"}
    assert (await old.restart(before)).refused == {job.id: "in_progress"}
    assert not await case.queue.store_piece(before, 0, b"old")
    assert await case.queue.give_back([before], "requeued", "engine_died") == {}
    assert not (await new.write(held)).refused
    assert not (await new.end(held)).refused
    assert (await old.write(before)).refused == {job.id: "completed"}
    assert await case.events(job) == ["claimed", "x", "handed_over", "claimed", "x", "completed"]


@missed_without("return #acknowledged > 0 and #redis.call", "return false and #redis.call")
async def test_a_repeated_call_changes_nothing(case: Case) -> None:
    gateway, worker = case.gateway(), case.worker()
    jobs = [await case.submit(stream=False), await case.submit()]
    held = await worker.claim()
    known = [word for job in held for word in (job.id, job.generation, job.number)]
    entries = [held[1].id, worker.next_id(held[1]), pack_entry(5, [b"a"])]
    step = Step(entries, [held[0].id, worker.next_id(held[0]), "worker_lost"])
    again = replace(step, acknowledged=known, ends=[worker.last(held[1], "b")])
    for each in (step, again, again):
        assert (await worker.send(each)).refused == {}
    assert await case.events(jobs[0]) == ["claimed", "restarted"]
    assert await case.events(jobs[1]) == ["claimed", "a", "b", "completed"]
    assert [entry.position.number for entry in await case.log(jobs[1])] == [1, 2, 3]
    assert gateway.frames() == [(jobs[1].id, 3, "bcompleted")]
    assert case.server.xlen(f"{case.base}ended") == 1


@missed_without("redis.call('XLEN', key('log', id)) ~= number - 1", "false")
async def test_a_log_that_lacks_entries_completes_nothing(case: Case) -> None:
    gateway = case.gateway()
    worker, held = await case.begin()
    await worker.write(held)
    case.server.xdel(keys.log(0, held.id), str((await case.log(held))[1].position))
    await worker.end(held)
    assert case.record(held.id)["error_code"] == "log_lost"
    assert gateway.frames()[-1][2] == "failed"
    worker, lost = await case.begin()
    case.server.delete(keys.log(0, lost.id))
    assert (await worker.end(lost)).refused == {lost.id: "failed"}


async def test_a_record_that_is_gone_is_not_ended(case: Case) -> None:
    gateway = case.gateway()
    worker, held = await case.begin()
    case.server.delete(keys.job(0, held.id))
    assert (await worker.write(held)).refused == {}  # no record is read for a token
    await worker.end(held)
    assert 0 < case.server.pttl(keys.log(0, held.id)) <= 60_000
    assert [event for _, _, event in gateway.frames()] == ["x"]


# --- followers ---


async def test_only_those_who_follow_receive_steps_of_a_plain_answer(case: Case) -> None:
    gateways = [case.gateway(), case.gateway("gw-2")]
    worker, held = await case.begin(stream=False)
    emitted = await worker.write(held)
    assert (emitted.followers, gateways[0].frames()) == ({}, [])
    await case.queue.watch(held.id, "gw-2", follow=True)
    emitted = await worker.write(held)  # the holder learns it with its next step
    assert emitted.followers == {held.id: (f"{GATEWAY} gw-2", True)}
    held = worker.jobs[held.id] = held._replace(watchers=f"{GATEWAY} gw-2", watched=True)
    assert (await worker.write(held)).followers == {}
    assert gateways[1].frames() == [(held.id, 4, "x")]
    await worker.end(held)
    assert [gateway.frames()[-1:] for gateway in gateways] == [[(held.id, 5, "completed")]] * 2


@missed_without(
    "if version ~= '' then redis.call('ZREMRANGEBYSCORE', followed, '-inf', version) end",
    "redis.call('DEL', followed)",
)
async def test_followers_are_told_until_the_worker_knows_them(case: Case) -> None:
    worker = case.worker()
    one, two = await case.submit(), await case.submit()
    jobs = await worker.claim()
    await case.queue.watch(one.id, "gw-2", follow=True)
    first = await worker.write(*jobs)
    worker.version = b""  # it has lost its connection
    await case.queue.watch(two.id, "gw-3", follow=True)
    second = await worker.write(*jobs)
    assert set(first.followers) == {one.id}
    assert set(second.followers) == {one.id, two.id}
    await case.queue.unwatch(one.id, "gw-2")
    assert (await worker.write(*jobs)).followers == {one.id: (GATEWAY, True)}
    assert (await worker.write(*jobs)).followers == {}


@missed_without("elseif now - since >= DEAF_US then", "elseif false then")
@missed_without("elseif now - since >= DEAF_US then", "else")
async def test_a_gateway_that_receives_nothing_follows_no_more(case: Case) -> None:
    job, worker = await case.submit(keep_s=5.0), case.worker()
    held = await worker.claim_one()
    for pause_s, watchers in ((0, GATEWAY), (0.5, GATEWAY), (0.6, "")):
        case.sleep(pause_s)
        await worker.write(held)
        assert case.record(job.id).get("watchers") == watchers
    assert await beat(case, worker, seconds=4) == {}
    assert await beat(case, worker, seconds=2) == {job.id: "cancelled"}
    assert case.record(job.id)["error_code"] == "unattended"


# --- ends ---


@missed_without("if number < NODE_ENTRIES then compact(id) end", "")
async def test_a_finished_job_has_its_answer_and_leaves_nothing_else(case: Case) -> None:
    gateway, worker, job = case.gateway(), case.worker(), await case.submit(deadline_s=9.0)
    before = case.names()
    held = await worker.claim_one()
    for _ in range(10):
        await worker.write(held)
    during = case.server.memory_usage(keys.log(0, job.id))
    await worker.end(held, "last", cached_tokens=1, first_output_s=0.25)
    found = await case.shown(job)
    assert (found.state, found.status, found.content_type) == (
        "completed", 200, "text/event-stream",
    )  # fmt: skip
    assert found.usage == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert found.first_output_s == 0.25
    assert gateway.frames()[-1] == (job.id, 12, "lastcompleted")
    (entry,) = (await case.log(job))[-1:]
    assert (entry.items, entry.event, entry.details) == ((b"last",), "completed", (3, 1))
    assert case.server.memory_usage(keys.log(0, job.id)) < during / 2, "short logs are compacted"
    assert case.server.xlen(f"{case.base}queue:{POOL}") == 0
    assert case.server.hget(f"{case.base}held", worker.name) == b"0"
    gone = {"deadlines", f"line:{POOL}:default:{TENANT}", f"turns:{POOL}:default"}
    assert not (gone | {f"waiting:{POOL}:default"}) & case.names()
    assert gone & before
    ttl_ms = [case.server.pttl(key(0, job.id)) for key in (keys.job, keys.log)]
    assert 50_000 < ttl_ms[0] <= 60_000 < ttl_ms[1]


SHORT, LONG = b"\0\xff" * 9, b"x" * (INLINE_RESULT_BYTES + 1)
ANSWERS: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "empty": ({}, (200, b"a/b", b"")),
    "short": ({"body": SHORT, "status": 201}, (201, b"a/b", SHORT)),
    "longest": ({"body": LONG[1:]}, (200, b"a/b", LONG[1:])),
    "too long": ({"body": LONG}, ()),
    "with headers": ({"body": SHORT, "headers": (("x-a", "1"),)}, ()),
    "refusal": (
        {"body": SHORT, "status": 400, "error_code": "bad_request"},
        (400, b"a/b", SHORT),
    ),
}
"""What a worker ends a plain job with, and what of it comes with the event; the rest is read."""


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_plain_answer_travels_with_its_end_if_it_is_short(case: Case, name: str) -> None:
    gateway, (answer, told) = case.gateway(), ANSWERS[name]
    worker, held = await case.begin(stream=False)
    body = answer.get("body", b"")
    for number in range(n_pieces(len(body))):
        assert await case.queue.store_piece(held, number, body)
    await worker.end(held, "t", content_type="a/b", **answer)
    ((event, *details),) = gateway.details()
    assert (event, *details) == (event, 3, 0, *told)
    assert event == (b"failed" if "error_code" in answer else b"completed")
    assert (await case.log(held))[-1].details == (3, 0)
    found = await case.shown(held)
    assert (found.status, found.result_bytes) == (answer.get("status", 200), len(body))
    assert (found.error_code or "") == answer.get("error_code", "")
    assert found.headers == dict(answer.get("headers", ()))
    assert (found.result or await case.queue.piece(held.id, 0) or b"") == body


@pytest.mark.parametrize("how", ["cancelled", "handed over", "lost", "lost log"])
@missed_without(
    "if job.state == 'in_progress' then\n    drop_pieces(id)",
    "if job.state == 'in_progress' then",
    how="lost",
)
async def test_pieces_of_an_attempt_that_ends_otherwise_are_deleted(case: Case, how: str) -> None:
    worker, held = await case.begin(stream=False)
    for number in range(2):
        assert await case.queue.store_piece(held, number, b"a")
    if how == "cancelled":
        await case.queue.cancel(TENANT, held.id)
    elif how == "handed over":
        await case.queue.give_back([held], "handed_over", "stopped")
    elif how == "lost":
        await case.lose()
    else:
        case.server.delete(keys.log(0, held.id))
        await worker.end(held, body=b"short")
    assert not [name for name in case.record(held.id) if name.startswith("result:")]
    assert not await case.queue.store_piece(held, 2, b"a")
    case.server.delete(keys.job(0, held.id))
    assert not await case.queue.store_piece(held, 0, b"a")
    assert not case.server.exists(keys.job(0, held.id)), "it would have no time to live"
