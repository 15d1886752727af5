"""What workers write: logs, frames, ends, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from shared.job.log import DeltaDecoder, DeltaEncoder, Position, frame_head, pack_entry, pack_frame
from shared.job.result import INLINE_RESULT_BYTES, n_pieces
from shared.job.states import JobEvent
from shared.store import keys
from shared.store.queue import Step
from tests.store.conftest import GATEWAY, POOL, TENANT, Case, beat, make_job


async def test_a_step_is_in_the_log_and_published(case: Case) -> None:
    gateway, worker, job = case.gateway(), case.worker(), await case.submit()
    held = await worker.claim_one()
    encoder, decoder = DeltaEncoder(), DeltaDecoder()
    chunks = [b'{"text":"\xff\x00%d"}' % n for n in range(9)]
    for chunk in chunks:
        entry = pack_entry([(0, 0, [7], "a\0ä")], encoder.encode([chunk]))
        frame = pack_frame(frame_head(held.id, held.generation), worker.numbers[job.id] + 1, entry)
        step = Step([held.id, worker.next_id(held), entry], messages={GATEWAY: [frame]})
        assert not (await worker.send(step)).refused
    log = await case.log(job)
    assert [entry.position for entry in log] == [(held.generation, n + 1) for n in range(10)]
    assert [decoder.decode(entry.items) for entry in log[1:]] == chunks
    assert log[1].journal == ((0, 0, (7,), "a\0ä".encode()),)
    assert [number for _, number, _ in gateway.frames()] == [*range(2, 11)]
    behind = await case.queue.read(job.id, log[4].position, 3)
    assert behind == log[4:7]
    assert await case.queue.positions(0, [job.id]) == [log[-1].position]


async def test_a_step_of_many_jobs_is_one_message_for_each_gateway(case: Case) -> None:
    gateways = [case.gateway(), case.gateway("gw-2")]
    for n in range(6):
        job = await case.submit(gateway=GATEWAY if n % 2 else "gw-2")
        if n == 5:
            await case.queue.watch(job.id, "gw-2", follow=True)
    worker = case.worker()
    jobs = await worker.claim()
    for gateway in gateways:
        gateway.messages()  # the claim of a job that is followed
    await worker.write(*jobs)
    messages = [gateway.messages() for gateway in gateways]
    assert [[len(message) for message in each] for each in messages] == [[3], [4]]


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


async def test_an_old_worker_ends_and_restarts_nothing(case: Case) -> None:
    old, new, job = case.worker("w-1"), case.worker("w-2"), await case.submit(stream=False)
    before = await old.claim_one()
    await old.write(before)
    await case.queue.give_back([before], "handed_over", "drain")
    held = await new.claim_one()
    assert (await old.end(before)).refused == {job.id: "in_progress"}
    assert (await old.restart(before)).refused == {job.id: "in_progress"}
    assert not await case.queue.store_piece(before, 0, b"old")
    assert await case.queue.give_back([before], "requeued", "engine_died") == {}
    assert not (await new.write(held)).refused
    assert not (await new.end(held)).refused
    assert (await old.write(before)).refused == {job.id: "completed"}
    assert await case.events(job) == ["claimed", "x", "handed_over", "claimed", "x", "completed"]


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


async def test_what_redis_has_lost_is_sent_again(case: Case) -> None:
    worker = case.worker()
    jobs = [await case.submit() for _ in range(3)]
    held = await worker.claim()
    for text in "abc":
        await worker.write(*held, text=text)
    last = [(await case.log(job))[-1].position for job in jobs]
    # Redis comes back with an older copy; only a person deletes an entry in between.
    _truncate(case, jobs[0].id, 2)
    case.server.xdel(keys.log(0, jobs[1].id), str(Position(held[1].generation, 2)))
    acknowledged = [word for job, at in zip(held, last, strict=True) for word in (job.id, *at)]
    emitted = await worker.send(Step(acknowledged=acknowledged))
    assert emitted.short == {jobs[0].id: 2}
    assert emitted.refused == {jobs[1].id: "failed"}
    assert case.record(jobs[1].id)["error_code"] == "log_lost"
    worker.numbers[jobs[0].id] = 2
    for text in "bc":
        assert not (await worker.write(held[0], text=text)).refused
    assert await case.events(jobs[0]) == ["claimed", "a", "b", "c"]
    assert await case.events(jobs[2]) == ["claimed", "a", "b", "c"]


def _truncate(case: Case, job_id: str, length: int) -> None:
    """Leave the first entries of a log, as an older copy of the data has it."""
    log = keys.log(0, job_id)
    entries = case.server.xrange(log)[:length]
    case.server.delete(log)
    for entry_id, fields in entries:
        case.server.xadd(log, fields, id=entry_id)


async def test_a_log_that_lacks_entries_completes_nothing(case: Case) -> None:
    gateway, worker, job = case.gateway(), case.worker(), await case.submit()
    held = await worker.claim_one()
    await worker.write(held)
    case.server.xdel(keys.log(0, job.id), str((await case.log(job))[1].position))
    await worker.end(held)
    assert case.record(job.id)["error_code"] == "log_lost"
    assert gateway.frames()[-1][2] == "failed"
    lost = await case.submit()
    held = await worker.claim_one()
    case.server.delete(keys.log(0, lost.id))
    assert (await worker.end(held)).refused == {lost.id: "failed"}


async def test_only_those_who_follow_receive_steps_of_a_plain_answer(case: Case) -> None:
    gateways, worker = [case.gateway(), case.gateway("gw-2")], case.worker()
    job = await case.submit(stream=False)
    held = await worker.claim_one()
    emitted = await worker.write(held)
    assert (emitted.followers, gateways[0].frames()) == ({}, [])
    await case.queue.watch(job.id, "gw-2", follow=True)
    emitted = await worker.write(held)  # the holder learns it with its next step
    assert emitted.followers == {job.id: (f"{GATEWAY} gw-2", True)}
    held = worker.jobs[job.id] = held._replace(watchers=f"{GATEWAY} gw-2", watched=True)
    assert (await worker.write(held)).followers == {}
    assert gateways[1].frames() == [(job.id, 4, "x")]
    await worker.end(held)
    assert [gateway.frames()[-1:] for gateway in gateways] == [[(job.id, 5, "completed")]] * 2


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


async def test_an_answer_begins_anew_only_if_no_client_has_seen_it(case: Case) -> None:
    seen, followed, plain = make_job(), make_job(stream=False), make_job(stream=False)
    await case.submit_all([seen, followed, plain])
    worker = case.worker()
    held = await worker.claim()
    await case.queue.watch(followed.id, "gw-2", follow=True)
    emitted = [await worker.restart(job, "cannot_continue") for job in held]
    assert [each.refused for each in emitted] == [{seen.id: "failed"}, {followed.id: "failed"}, {}]
    assert case.record(seen.id)["error_code"] == "cannot_continue"
    await worker.write(held[2])
    assert await case.events(plain) == ["claimed", "restarted", "x"]
    watched = await case.queue.watch(plain.id, "gw-2", follow=True)
    assert watched is not None
    assert watched.start == 2


async def test_a_finished_job_has_its_answer_and_leaves_nothing_else(case: Case) -> None:
    gateway, worker, job = case.gateway(), case.worker(), await case.submit(deadline_s=9.0)
    before = case.names()
    held = await worker.claim_one()
    await worker.write(held)
    case.sleep(1)
    await worker.end(held, "last", cached_tokens=1, first_output_s=0.25)
    (found,) = await case.queue.get(job.id)
    assert found is not None
    assert (found.state, found.status, found.content_type) == (
        "completed",
        200,
        "text/event-stream",
    )
    assert found.usage == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert found.first_output_s == 0.25
    assert gateway.frames() == [(job.id, 2, "x"), (job.id, 3, "lastcompleted")]
    (entry,) = (await case.log(job))[-1:]
    assert (entry.items, entry.event, entry.details) == ((b"last",), "completed", (3, 1))
    assert case.server.xlen(f"{case.base}queue:{POOL}") == 0
    assert case.server.hget(f"{case.base}held", worker.name) == b"0"
    gone = {"deadlines", f"line:{POOL}:default:{TENANT}", f"turns:{POOL}:default"}
    assert not (gone | {f"waiting:{POOL}:default"}) & case.names()
    assert gone & before
    ttl_ms = [case.server.pttl(key(0, job.id)) for key in (keys.job, keys.log)]
    assert 50_000 < ttl_ms[0] <= 60_000 < ttl_ms[1]


@pytest.mark.parametrize("size", [0, 9, INLINE_RESULT_BYTES, INLINE_RESULT_BYTES + 1])
async def test_a_plain_answer_travels_with_its_end_if_it_is_short(case: Case, size: int) -> None:
    gateway, worker = case.gateway(), case.worker()
    job, body = await case.submit(stream=False), bytes(n % 251 for n in range(size))
    held = await worker.claim_one()
    for number in range(n_pieces(size)):
        assert await case.queue.store_piece(held, number, body)
    await worker.end(held, "t", body=body, content_type="a/b", status=201)
    (event,) = gateway.details()
    is_long = size > INLINE_RESULT_BYTES
    assert event == (b"completed", 3, 0, *(() if is_long else (201, b"a/b", body)))
    assert (await case.log(job))[-1].details == (3, 0)
    (found,) = await case.queue.get(job.id)
    assert found is not None
    assert (found.status, found.result_bytes) == (201, size)
    assert (found.result or await case.queue.piece(job.id, 0) or b"") == body


async def test_an_answer_with_headers_is_read_from_the_record(case: Case) -> None:
    gateway, worker, job = case.gateway(), case.worker(), await case.submit(stream=False)
    held = await worker.claim_one()
    await worker.end(held, body=b"{}", headers=(("x-a", "1"),))
    assert gateway.details() == [(b"completed", 3, 0)]
    (found,) = await case.queue.get(job.id)
    assert found is not None
    assert (found.headers, found.result) == ({"x-a": "1"}, b"{}")


async def test_a_refused_stream_has_the_engines_body(case: Case) -> None:
    gateway, worker, job = case.gateway(), case.worker(), await case.submit()
    held = await worker.claim_one()
    await worker.end(
        held, event=JobEvent.FAIL, error_code="bad_request", status=400, body=b"{}",
        content_type="application/json",
    )  # fmt: skip
    assert gateway.details() == [(b"failed", 3, 0, 400, b"application/json", b"{}")]
    assert await case.state(job) == "failed"
    assert case.record(job.id)["error_code"] == "bad_request"


async def test_pieces_of_an_attempt_that_ends_otherwise_are_deleted(case: Case) -> None:
    worker, job = case.worker(), await case.submit(stream=False)
    held = await worker.claim_one()
    assert await case.queue.store_piece(held, 0, b"a")
    assert await case.queue.store_piece(held, 1, b"b")
    await case.queue.give_back([held], "handed_over", "drain")
    assert await case.queue.piece(job.id, 0) is None
    assert await case.queue.piece(job.id, 1) is None


async def test_a_record_that_is_gone_is_not_ended(case: Case) -> None:
    gateway, worker, job = case.gateway(), case.worker(), await case.submit()
    held = await worker.claim_one()
    case.server.delete(keys.job(0, job.id))
    emitted = await worker.write(held)
    assert emitted.refused == {}  # no record is read for a token
    await worker.end(held)
    assert 0 < case.server.pttl(keys.log(0, job.id)) <= 60_000
    assert [event for _, _, event in gateway.frames()] == ["x"]


async def test_a_short_log_takes_little_memory_when_it_has_ended(case: Case) -> None:
    worker, job = case.worker(), await case.submit()
    held = await worker.claim_one()
    for _ in range(10):
        await worker.write(held)
    during = case.server.memory_usage(keys.log(0, job.id))
    await worker.end(held)
    assert case.server.memory_usage(keys.log(0, job.id)) < 1600 < during


async def test_each_end_is_noted_once_with_its_use(case: Case) -> None:
    job, other = await case.submit(key="key-1", notify="job", reserved="9"), await case.submit()
    worker = case.worker()
    case.sleep(1)
    held = await worker.claim(1)
    case.sleep(2)
    await case.queue.give_back(held, "handed_over", "drain")
    worker.jobs.clear()
    held = await worker.claim(1)
    case.sleep(3)
    await worker.end(held[0])
    await case.queue.cancel(TENANT, other.id)
    entries = [
        msgpack.unpackb(fields[b"e"]) for _, fields in case.server.xrange(case.base + "ended")
    ]
    id_, tenant, key, model, state, notify, reserved, *tokens, queued, engine, wasted = entries[0]
    assert (id_, tenant, key, model, state) == (job.id, TENANT, "key-1", "m", "completed")
    assert (notify, reserved, tokens) == ("job", "9", [2, 0, 3])
    seconds = [round(us / 1e6) for us in (queued, engine, wasted)]
    assert seconds == [1, 5, 2]
    assert entries[1][0] == other.id
    assert entries[1][7:10] == [False, False, False]


async def test_attempts_are_shown_in_their_order(case: Case) -> None:
    worker, job = case.worker(), await case.submit(metadata=json.loads("{}"))
    for reason in ("drain", "yielded"):
        held = await worker.claim_one()
        await worker.write(held)
        await case.queue.give_back([held], "handed_over", reason)
        worker.jobs.clear()
    await worker.end(await worker.claim_one())
    (found,) = await case.queue.get(job.id)
    assert found is not None
    shown: list[Any] = [(a.worker, a.outcome, a.entries) for a in found.attempts]
    assert shown == [("w-1", "drain", 1), ("w-1", "yielded", 1), ("w-1", "completed", None)]
    times = [t for a in found.attempts for t in (a.started_at, a.ended_at or 0)]
    assert times == sorted(times)
